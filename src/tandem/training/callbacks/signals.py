"""Signal handling in a thread, which also works while the main thread is in C code."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

# Seconds after the first signal in which others count as the same one: a terminal sends it to every
# process, and a launcher passes it on.
REPEATED = 1.0


class Ear:
    """Distinguishes a second signal from a first one delivered twice."""

    def __init__(self) -> None:
        self.first: float | None = None

    def hears_again(self) -> bool:
        now = time.monotonic()
        if self.first is None:
            self.first = now
        return now - self.first > REPEATED


class Pipe:
    """Calls `hear(number)` in a thread as soon as Python receives a signal.

    Python runs its own handlers in the main thread, which must first return from C code.
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
        """End the thread once it has read everything written."""
        signal.set_wakeup_fd(self.before)
        os.close(self.start)
