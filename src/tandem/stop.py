"""What ends a run for a reason: one line, and an exit code of its own."""

from __future__ import annotations

STOPPED = 3  # exit code of a run that a guard ended
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command may go on


class Stop(RuntimeError):
    """A run ends; the message says what was seen and what to change."""


class Away(Stop):
    """Somebody whom the run asks gave no answer, however long it waited.

    It is raised before anything of an iteration was trained, so a checkpoint of that moment loses
    nothing.
    """
