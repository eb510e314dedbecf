"""The check that a run directory can be resumed, before anything in it is cut back."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.record import jsonl
from tandem.record.checkpoint import check_places, find_newest_step
from tandem.record.reading.logs import Log
from tandem.record.run_record import CHECKPOINTS, LOGS, MANIFEST, METRICS, TIMING


def check_resumable(run_dir: Path, *, every: int, iterations: int) -> None:
    """Raise ValueError if resuming would destroy what the run has written, or cannot extend it.

    every: iterations between checkpoints. The first one is written during the next iteration, so a
    run of `every` + 1 lines may have none.
    iterations: the number at which it ends.
    """
    folder = run_dir / CHECKPOINTS
    check_places(folder)
    _check_manifest(run_dir / MANIFEST)
    for table in sorted((run_dir / "samples").glob("iteration_*.jsonl")):
        _check_samples(table)
    lines = max(len(jsonl.read_iterations(run_dir / name)) for name in LOGS)
    for name in (METRICS, TIMING):
        Log(run_dir / name)  # curves are drawn of them once the run has ended
    newest = find_newest_step(folder) if folder.is_dir() else None
    if newest is not None and newest > iterations:
        raise ValueError(
            f"iterations={iterations}: {run_dir} already has a checkpoint of iteration {newest}; "
            f"set iterations={newest} or more"
        )
    lost = newest is None and (not folder.is_dir() or lines > every + 1)
    if lines and lost:
        raise ValueError(
            f"resume={run_dir}: its logs have {lines} lines, but {folder} has no "
            f"checkpoint to resume from; restore the checkpoints, or remove {METRICS} and the "
            "other logs to start again"
        )


def check_measurable(run_dir: Path) -> None:
    """Raise ValueError if no checkpoint of the run can be evaluated."""
    folder = run_dir / CHECKPOINTS
    if not folder.is_dir() or find_newest_step(folder) is None:
        raise ValueError(f"resume={run_dir}: it has no checkpoint to evaluate")


def _check_manifest(path: Path) -> None:
    """Raise ValueError for a manifest to which a start cannot be added."""
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {"id": "", "starts": []}
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"id": _, "starts": list()}:
            return
    raise ValueError(f"{path} is damaged; restore a complete copy, or remove it to start a new one")


def _check_samples(table: Path) -> None:
    """Raise Damaged for a row without the fields that later samples are compared by."""
    for number, row in enumerate(jsonl.read(table), 1):
        if lacking := sorted({"kind", "prompt", "output"} - row.keys()):
            raise jsonl.Damaged(table, number, f"it has no {lacking[0]}")
