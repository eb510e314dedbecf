"""Reasons that end a run: one line, and an exit code of its own."""

from __future__ import annotations

from os import _exit as end_process  # at once, whatever other threads do; rewards cannot have it

__all__ = [
    "INTERRUPTED",
    "STALLED",
    "STOPPED",
    "Abandoned",
    "EngineUnavailable",
    "Stop",
    "end_process",
]

STOPPED = 3  # exit code of a run that a guard ended
STALLED = 4  # of one that made no progress any more
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command may go on


class Stop(RuntimeError):
    """A run ends; the message says what was seen and what to change."""


class EngineUnavailable(Stop):
    """Somebody whom the run asks gave no answer, however long it waited.

    It is raised before anything of an iteration was trained, so a checkpoint of that moment loses
    nothing.
    """


class Abandoned(SystemExit):
    """A run that was told to end waits for samples and rewards no longer. As `EngineUnavailable`,
    it comes before anything of an iteration was trained, or a checkpoint of before is there."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)
