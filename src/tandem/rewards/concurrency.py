"""Calls of a user's functions in threads: those that take too long, and those in a queue."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from tandem.rewards.result import Late, Missing, attempt
from tandem.stop import Stop
from tandem.threads import ENDING, HEARING, call_in_thread, thread_like_this

# Rounds of calls in a row that all timed out, after which the rest is skipped.
PATIENCE = 3


def at_once(
    count: int, function: Callable, asked: Sequence[tuple], *, seconds: float | None = None
) -> list:
    """The function's result or exception for each tuple of arguments; `count` at a time.

    A call that takes over `seconds` is a TimeoutError, and its thread is abandoned. After
    three rounds of nothing but these and `Late` the remaining calls are `Missing`: they are not
    made.
    """
    return Calls(function, asked, seconds).run(min(count, len(asked)))


class Calls:
    """Calls of one function, with those in progress."""

    def __init__(self, function: Callable, asked: Sequence[tuple], seconds: float | None) -> None:
        self.function, self.asked, self.seconds = function, asked, seconds
        self.answers: dict[int, object] = {}
        self.begun: dict[int, float] = {}  # start times of running calls
        self.late, self.patience = 0, PATIENCE  # late calls in a row, and how many end the rest
        self.left = iter(range(len(asked)))
        self.changed = threading.Condition()

    def run(self, count: int) -> list:
        """Make every call on `count` threads, and wait for the results."""
        self.patience = PATIENCE * count
        for _ in range(count):
            thread_like_this(self._work)
        with self.changed:
            try:
                while len(self.answers) < len(self.asked):
                    ENDING.refuse_to_wait()
                    self.changed.wait(self._until_one_is_late())
                    self._give_up()
            finally:  # start no further call
                self.left = iter(())
        return [self.answers[place] for place in range(len(self.asked))]

    def _work(self) -> None:
        while (place := self._next()) is not None:
            answer = attempt(self.function, self.asked[place])
            with self.changed:
                if self.begun.pop(place, None) is None:
                    return  # timed out: another thread took over
                self.late = self.late + 1 if isinstance(answer, Late) else 0
                self._answer(place, answer)
                self._leave_others()

    def _next(self) -> int | None:
        with self.changed:
            if (place := next(self.left, None)) is not None:
                self.begun[place] = time.monotonic()
            return place

    def _answer(self, place: int, answer: object) -> None:
        self.answers[place] = answer
        if len(self.answers) == len(self.asked):
            self.changed.notify()

    def _until_one_is_late(self) -> float:
        if self.seconds is None:
            return HEARING
        now = time.monotonic()
        late = min(self.begun.values(), default=now) + self.seconds
        return max(min(late - now, HEARING), 0)

    def _give_up(self) -> None:
        now = time.monotonic()
        late = [
            place
            for place, since in self.begun.items()
            if self.seconds is not None and now - since >= self.seconds
        ]
        for place in late:
            del self.begun[place]
            self.late += 1
            self._answer(place, TimeoutError())
            if self.late < self.patience:
                thread_like_this(self._work)
        self._leave_others()

    def _leave_others(self) -> None:
        if self.late >= self.patience:
            for place in self.left:
                self._answer(place, Missing(f"skipped: {self.late} calls in a row timed out"))


class CallQueue:
    """Calls that are made one after another, in the order of `put`."""

    def __init__(self) -> None:
        self.last: Future | None = None
        self.lock = threading.Lock()  # any thread may put a call

    def put(self, function: Callable, *arguments: object) -> Future:
        """Call a function once the one before it has ended; the future holds its result."""
        with self.lock:
            self.last = call_in_thread(_call_after, self.last, function, *arguments)
            return self.last


def _call_after(before: Future | None, function: Callable, *arguments: object) -> object:
    if before is not None:
        before.exception()
    return function(*arguments)


def lost_output(names: Iterable[str]) -> Stop:
    """The error of a reward that took sys.stdout, which is opened again for the end of the run."""
    sys.stdout = os.fdopen(1, "w", closefd=False)
    return Stop(
        f"a reward ({', '.join(names)}) closed sys.stdout or set it to None, and the run "
        "writes to it; use contextlib.redirect_stdout, which restores it"
    )
