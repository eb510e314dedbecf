"""The threads that sample groups ahead of training, one group each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tandem.threads import ENDING, HEARING, thread_like_this
from tandem.training.ahead import Ahead, Ticket

Rows = TypeVar("Rows")
Found = TypeVar("Found")


class GroupThreads(Generic[Rows]):
    """Begins groups while there is room for them. An exception of a thread is raised by the next
    wait. One lock guards all state."""

    def __init__(
        self,
        queue: Ahead,
        sample: Callable[[Ticket], Rows],
        *,
        version: Callable[[], int],
        room: int,
        check: Callable[[], None],
    ) -> None:
        """version: of the weights that would begin a group now; room: concurrent groups; check:
        called during a wait to raise errors from elsewhere. `sample` calls `enter` for a group
        that has its weights."""
        self.queue, self.sample, self.version = queue, sample, version
        self.room, self.check = room, check
        self.changed = threading.Condition()
        self.rows: dict[Ticket, Rows] = {}
        self.starting: set[Ticket] = set()  # without weights so far
        self.under_way = 0
        self.fault: BaseException | None = None
        self.idle, self.since = 0.0, time.perf_counter()  # seconds without a group in flight

    def admit(self, iteration: int) -> None:
        """Begin the groups that may be requested in this iteration."""
        with self.changed:
            self.queue.admit(iteration)
            self._begin()

    def take(self, iteration: int) -> dict[Ticket, Rows]:
        """The batch of an iteration; waits until it is complete."""
        tickets = self.wait_for(lambda: self.queue.batch(iteration))
        with self.changed:
            return {ticket: self.rows.pop(ticket) for ticket in tickets}

    def enter(self, ticket: Ticket) -> None:
        """Mark a group as having its weights, which later ones do not change."""
        with self.changed:
            self.starting.discard(ticket)
            self.changed.notify_all()

    def all_entered(self) -> None:
        """Wait until all requested groups have their weights."""
        self.wait_for(lambda: not (self.queue.waiting or self.starting) or None)

    def finish(self) -> None:
        """Wait for all requested groups."""
        self.wait_for(lambda: not self.queue.pending or None)

    def wait_for(self, found: Callable[[], Found | None]) -> Found:
        """Wait until `found` returns something other than None, and return that."""
        with self.changed:
            while True:
                if self.fault is not None:
                    raise self.fault
                if (result := found()) is not None:
                    return result
                ENDING.refuse_to_wait()
                self.check()
                self._begin()  # groups that waited for newer weights
                self.changed.wait(HEARING)

    def pop_idle(self) -> float:
        """Seconds without a group in flight since the last call."""
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
        except BaseException as error:  # raised again by the next wait
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
