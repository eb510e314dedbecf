"""Signals, heard by the main thread, and beside it where that one is in C code."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

# Seconds after the first signal in which others are the same one: a terminal sends it to every
# process, and a launcher that was sent it passes it on.
REPEATED = 1.0


class Ear:
    """Tells a second signal from a first one that comes twice."""

    def __init__(self) -> None:
        self.first: float | None = None

    def hears_again(self) -> bool:
        now = time.monotonic()
        if self.first is None:
            self.first = now
        return now - self.first > REPEATED


class Pipe:
    """Calls `hear(number)` in a thread for every signal that Python handles, as soon as it comes.

    Python's own handlers run in the main thread, and wait until it comes back from C code.
    """

    def __init__(self, hear: Callable[[int], None]) -> None:
        self.hear = hear
        self.end, self.start = os.pipe()
        os.set_blocking(self.start, False)
        self.before = signal.set_wakeup_fd(self.start, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while number := os.read(self.end, 1):
            self.hear(number[0])
        os.close(self.end)

    def close(self) -> None:
        """The thread ends once it has read all that was written."""
        signal.set_wakeup_fd(self.before)
        os.close(self.start)
