"""A circuit breaker: it pauses requests to an endpoint that keeps failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.contracts import declare


@declare(judges_itself=True)
@dataclass(kw_only=True)
class Breaker:
    """Closed, until `failures` in a row open it; then one probe is admitted every `pause` seconds,
    and the first success closes it.

    Threads may share it: concurrent calls that fail count as one failure.
    """

    failures: int = 5  # failures in a row that open it: no calls are made
    pause: float = 30.0  # seconds between the probes that may close it
    # Function of the current time in seconds, for tests.
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _in_a_row: int = field(default=0, init=False, repr=False)
    _counted: int = field(default=0, init=False, repr=False)  # failures in total
    last: str = field(default="", init=False, repr=False)  # message of the failure counted last
    _next_probe: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("failures", self.failures), ("pause", self.pause)):
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")

    @property
    def is_open(self) -> bool:
        return self._in_a_row >= self.failures

    def admits(self) -> int | None:
        """The admission of a call that may begin now, to pass to `record_failure`; None: it may
        not. A call admitted while the breaker is open is the probe."""
        with self._lock:
            if self.is_open:
                now = self.clock()
                if now < self._next_probe:
                    return None
                # A time, not a flag: a probe that never reports must not block later probes.
                self._next_probe = now + self.pause
            return self._counted

    def record_success(self) -> None:
        with self._lock:
            self._in_a_row = 0

    def record_failure(self, admission: int, message: str) -> None:
        """Count a failure with its message, unless one was counted since this admission."""
        with self._lock:
            if admission < self._counted:
                return
            self.last = message
            self._counted += 1
            self._in_a_row += 1
            self._next_probe = self.clock() + self.pause
