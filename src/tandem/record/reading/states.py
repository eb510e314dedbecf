"""The state of a run (running, finished, dead), from its folder alone and without writing there."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tandem.record.foreign import JSON_BYTES, check_file, read_object
from tandem.record.writer import find_writer

# not finished: it is incomplete, nothing runs it, and no sweep that would say how it ended.
State = Literal["finished", "running", "died", "not finished"]
UNFINISHED: Sequence[State] = ("died", "running", "not finished")
JOB, LOCK = "job.json", "job.lock"  # of a run that a sweep started
WRITTEN = ("manifest.json", "metrics.jsonl", "timing.jsonl")
RECENT = 300.0  # seconds; a run on another machine that wrote within them counts as running


def is_working(folder: Path) -> bool | None:
    """Whether a process works there; None: none does, and no sweep started the run.

    A free lock proves nothing on a file system that machines share without locks. There the process
    decides that run.lock names: where it is visible, also if it resumed a run that a sweep saw end;
    on another machine or in another container, by the time of its last write unless the sweep's
    job.json has an exit code.
    """
    writer = find_writer(folder)
    is_visible = writer is not None and writer.is_visible
    if is_locked(folder) or (is_visible and writer.runs):
        return True
    if _has_ended(folder):
        return False
    if writer is not None and not is_visible and time.time() - _read_last_write(folder) < RECENT:
        return True
    return False if (folder / LOCK).exists() else None


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of this folder; False on a file system without locks."""
    check_file(folder / LOCK, JSON_BYTES)
    try:
        file = (folder / LOCK).open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False


def _has_ended(folder: Path) -> bool:
    """Whether the sweep recorded the end of the process."""
    path = folder / JOB
    return path.exists() and read_object(path, "code")["code"] is not None


def _read_last_write(folder: Path) -> float:
    files = (folder / name for name in WRITTEN)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def describe_state(state: State, runs: int) -> str:
    """The state as a verb that agrees with the number of runs, as in "is still running"."""
    one, many = {
        "finished": ("finished", "finished"),
        "running": ("is still running", "are still running"),
        "died": ("died", "died"),
        "not finished": ("has not finished", "have not finished"),
    }[state]
    return one if runs == 1 else many


def count_states(states: Sequence[State]) -> str:
    """Counts of the unfinished states, as in "2 died, 1 running"."""
    many = {state: states.count(state) for state in UNFINISHED}
    return ", ".join(f"{n} {state}" for state, n in many.items() if n)
