"""What ends a run for a reason: one line, and an exit code of its own."""

from __future__ import annotations


class Stop(RuntimeError):
    """A run ends; the message says what was seen and what to change."""


class Away(Stop):
    """Somebody whom the run asks gave no answer, however long it waited.

    It is raised before anything of an iteration was trained, so a checkpoint of that moment loses
    nothing.
    """
