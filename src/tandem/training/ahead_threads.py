"""The threads that sample groups ahead of training, one group each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tandem.rewards.concurrency import ENDING, HEARING, thread_like_this
from tandem.training.ahead import Ahead, Ticket

Rows = TypeVar("Rows")
Found = TypeVar("Found")


class GroupThreads(Generic[Rows]):
    """Begins groups as there is room for them. What a thread raises is raised when somebody waits
    next. One lock guards everything here."""

    def __init__(
        self,
        queue: Ahead,
        sample: Callable[[Ticket], Rows],
        *,
        version: Callable[[], int],
        room: int,
        check: Callable[[], None],
    ) -> None:
        """version: that a group would be begun with now; room: groups at once; check: is called
        while somebody waits, and raises what is wrong elsewhere. `sample` tells `enter` of a group
        that has its weights."""
        self.queue, self.sample, self.version = queue, sample, version
        self.room, self.check = room, check
        self.changed = threading.Condition()
        self.rows: dict[Ticket, Rows] = {}
        self.starting: set[Ticket] = set()  # that have no weights yet
        self.under_way = 0
        self.fault: BaseException | None = None
        self.idle, self.since = 0.0, time.perf_counter()  # seconds without a group under way

    def admit(self, iteration: int) -> None:
        """Begin what may be asked for in this iteration."""
        with self.changed:
            self.queue.admit(iteration)
            self._begin()

    def take(self, iteration: int) -> dict[Ticket, Rows]:
        """The batch of an iteration, once it is there."""
        tickets = self.wait_for(lambda: self.queue.batch(iteration))
        with self.changed:
            return {ticket: self.rows.pop(ticket) for ticket in tickets}

    def enter(self, ticket: Ticket) -> None:
        """A group has its weights, whatever comes after them."""
        with self.changed:
            self.starting.discard(ticket)
            self.changed.notify_all()

    def all_entered(self) -> None:
        """Wait until all that was asked for has its weights."""
        self.wait_for(lambda: not (self.queue.waiting or self.starting) or None)

    def finish(self) -> None:
        """Wait for all that was asked for."""
        self.wait_for(lambda: not self.queue.pending or None)

    def wait_for(self, found: Callable[[], Found | None]) -> Found:
        """What it gives, once that is not None."""
        with self.changed:
            while True:
                if self.fault is not None:
                    raise self.fault
                if (result := found()) is not None:
                    return result
                ENDING.refuse_to_wait()
                self.check()
                self._begin()  # what waited for newer weights
                self.changed.wait(HEARING)

    def pop_idle(self) -> float:
        """Seconds without a group under way since it was asked last."""
        with self.changed:
            self._count(0)
            idle, self.idle = self.idle, 0.0
            return idle

    def _begin(self) -> None:
        while self.fault is None and self.under_way < self.room:
            if (ticket := self.queue.begin(self.version())) is None:
                return
            self._count(1)
            self.starting.add(ticket)
            thread_like_this(self._work, ticket)

    def _work(self, ticket: Ticket) -> None:
        try:
            rows, fault = self.sample(ticket), None
        except BaseException as error:  # nobody else hears of it
            rows, fault = None, error
        with self.changed:
            self._count(-1)
            if fault is None:
                self.rows[ticket] = rows
                self.queue.arrive(ticket)
                self._begin()
            else:
                self.fault = fault
            self.changed.notify_all()

    def _count(self, change: int) -> None:
        now = time.perf_counter()
        if not self.under_way:
            self.idle += now - self.since
        self.under_way, self.since = self.under_way + change, now
