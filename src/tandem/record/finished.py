"""Completeness of a run, read from its directory alone, without heavy imports."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.record import jsonl

CHECKPOINTS, METRICS, CONFIG = "checkpoints", "metrics.jsonl", "config.yaml"
ITERATIONS = re.compile(r"^iterations: (\d+)$", re.M)


def completed_iterations(run_dir: Path) -> int | None:
    """The number of iterations of a complete run, with a model and curves; None: it is incomplete.

    The curves are drawn last.
    """
    wanted = planned_iterations(run_dir)
    left = (f"{CHECKPOINTS}/step_{wanted or 0:06d}", "model", "curves.png")
    if wanted is None or not all((run_dir / name).exists() for name in left):
        return None
    lines = jsonl.read_iterations(run_dir / METRICS)
    return wanted if lines and lines[-1] == wanted else None


def planned_iterations(run_dir: Path) -> int | None:
    path = run_dir / CONFIG
    found = ITERATIONS.search(path.read_text(errors="replace")) if path.is_file() else None
    return None if found is None else int(found[1])
