"""Completeness of a run, read from its directory alone, without heavy imports."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.record import jsonl

CHECKPOINTS, METRICS, CONFIG = "checkpoints", "metrics.jsonl", "config.yaml"
CURVES = "curves.png"  # drawn last, after the model was saved
# In the last line of a run that ended early, as all rewards were full, or by a callback.
SOLVED, ENDED_EARLY = "guards/solved", "guards/ended_early"
ITERATIONS = re.compile(r"^iterations: (\d+)$", re.M)


def completed_iterations(run_dir: Path) -> int | None:
    """The number of iterations of a complete run, with a model and curves; None: it is incomplete.

    It is that of the configuration, or fewer if the run ended early by itself. The curves are drawn
    last, and removed when the run goes on.
    """
    wanted = planned_iterations(run_dir)
    lines = [] if wanted is None else jsonl.read_iterations(run_dir / METRICS)
    if not lines:
        return None
    done = lines[-1]
    if done != wanted and not {SOLVED, ENDED_EARLY} & jsonl.read(run_dir / METRICS)[-1].keys():
        return None
    left = (f"{CHECKPOINTS}/step_{done:06d}", "model", CURVES)
    return done if all((run_dir / name).exists() for name in left) else None


def planned_iterations(run_dir: Path) -> int | None:
    path = run_dir / CONFIG
    found = ITERATIONS.search(path.read_text(errors="replace")) if path.is_file() else None
    return None if found is None else int(found[1])
