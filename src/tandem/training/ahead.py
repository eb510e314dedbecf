"""The queue of rollouts ahead of training: the groups to sample, and the groups of a batch.

It has no thread and no clock. The groups of an iteration are requested once it is at most `ahead`
iterations away, so at most (ahead + 1) batches are in flight, and a group's weights are at most
`staleness` iterations old when it is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Order = Literal["exact", "ready"]


class Ticket(NamedTuple):
    """A group, identified by the iteration of its prompt and the prompt's slot."""

    iteration: int
    slot: int


class Ahead:
    """The groups of one rank. A version is the number of iterations that led to the weights.

    exact: the batch of an iteration consists of its own groups. ready: of the complete groups,
    those begun first, if all the remaining ones can still be trained in time.
    """

    def __init__(
        self, *, order: Order, staleness: int, ahead: int, slots: Sequence[int], iterations: int
    ) -> None:
        """slots: those of every iteration on this rank; iterations: the length of the run."""
        self.order, self.staleness, self.ahead = order, staleness, ahead
        self.slots, self.iterations = tuple(slots), iterations
        self.admitted = 0  # iterations whose groups were requested
        self.coming = 0  # the iteration whose batch is taken next
        self.waiting: list[Ticket] = []  # requested, not begun
        self.versions: dict[Ticket, int] = {}  # of groups begun and not trained
        self.there: set[Ticket] = set()  # those of them that are complete

    def admit(self, iteration: int) -> None:
        """Request the groups that may be requested once this iteration begins."""
        last = min(iteration + self.ahead, self.iterations - 1)
        first = max(self.admitted, iteration)
        self.waiting += [Ticket(i, slot) for i in range(first, last + 1) for slot in self.slots]
        self.admitted = max(self.admitted, last + 1)
        self.coming = max(self.coming, iteration)

    def begin(self, version: int) -> Ticket | None:
        """The next group to sample with weights of this version; None: there is none, or it could
        not be trained in time after those already begun, so it waits for newer weights."""
        trained = self.coming + len(self.versions) // len(self.slots)
        late = self.order == "ready" and trained > version + self.staleness
        if late or not self.waiting:
            return None
        ticket = self.waiting.pop(0)
        self.versions[ticket] = version
        return ticket

    def arrive(self, ticket: Ticket) -> None:
        """Mark a group as complete."""
        assert ticket in self.versions and ticket not in self.there, ticket
        self.there.add(ticket)

    def batch(self, iteration: int) -> dict[Ticket, int] | None:
        """The groups to train in this iteration, with the versions that began them; None: wait for
        the next group to arrive."""
        chosen = self._own(iteration) if self.order == "exact" else self._oldest(iteration)
        if chosen is None:
            return None
        self.there.difference_update(chosen)
        self.coming = iteration + 1
        return {ticket: self.versions.pop(ticket) for ticket in chosen}

    def _own(self, iteration: int) -> list[Ticket] | None:
        own = [Ticket(iteration, slot) for slot in self.slots]
        return own if self.there.issuperset(own) else None

    def _oldest(self, iteration: int) -> list[Ticket] | None:
        by_age = sorted(self.versions, key=lambda ticket: (self.versions[ticket], ticket))
        chosen = [ticket for ticket in by_age if ticket in self.there][: len(self.slots)]
        if len(chosen) < len(self.slots):
            return None
        left = sorted(v for ticket, v in self.versions.items() if ticket not in chosen)
        # The nth remaining group is trained n // batch + 1 iterations from now or later.
        times = enumerate(left, start=len(self.slots))
        late = any(iteration + n // len(self.slots) > v + self.staleness for n, v in times)
        # If the oldest are chosen, late ones (begun under a larger bound) can only be trained.
        return None if late and chosen != by_age[: len(chosen)] else chosen

    @property
    def pending(self) -> int:
        """Number of groups requested and not complete."""
        return len(self.waiting) + len(self.versions) - len(self.there)

    @property
    def open_tickets(self) -> list[Ticket]:
        """The groups requested and not complete, in the order of a new request."""
        return sorted({*self.waiting, *self.versions} - self.there)

    def share(self, left: Iterable[Ticket], count: int) -> list[Ticket]:
        """This rank's part of the groups that all ranks have left, `count` for each iteration. With
        `ready` these may have any slots: each rank gets as many as it still trains."""
        return [x for place, x in enumerate(sorted(left)) if place % count in self.slots]

    def restore(
        self, versions: Mapping[Ticket, int], unfinished: Sequence[Ticket], admitted: int
    ) -> None:
        """Continue with `versions` complete and the unfinished groups to be begun again."""
        self.versions, self.there = dict(versions), set(versions)
        self.waiting, self.admitted = list(unfinished), admitted
