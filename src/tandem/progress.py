"""The progress of a process, which the watchdog watches."""

from __future__ import annotations

import time


class Progress:
    """The time at which the process last finished a part of its work.

    Any thread may report. Work that takes long reports its parts: a token of all rows of a pass, a
    row that a server sent, a turn of the episodes.
    """

    def __init__(self) -> None:
        self.report()

    def report(self) -> None:
        """A part of the work is finished."""
        self.at = time.monotonic()


PROGRESS = Progress()
