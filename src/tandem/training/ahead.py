"""The queue of rollouts ahead of training: which groups are asked for, and which make a batch.

It has no thread and no clock. An iteration is asked for as soon as it is at most `ahead` iterations
away, so no more than (ahead + 1) batches are under way, and none of a group's weights is older than
`staleness` iterations when it is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Order = Literal["exact", "ready"]


class Ticket(NamedTuple):
    """A group by the iteration whose prompt it answers, and the prompt's slot in it."""

    iteration: int
    slot: int


class Ahead:
    """The groups of one rank. Versions count the iterations that led to the weights.

    exact: the batch of an iteration are its own groups. ready: of those that are there, the ones
    that were begun first, if what is left behind can all be trained in time.
    """

    def __init__(
        self, *, order: Order, staleness: int, ahead: int, slots: Sequence[int], iterations: int
    ) -> None:
        """slots: of every iteration, on this rank; iterations: of the run."""
        self.order, self.staleness, self.ahead = order, staleness, ahead
        self.slots, self.iterations = tuple(slots), iterations
        self.admitted = 0  # iterations that were asked for
        self.coming = 0  # the iteration whose batch is taken next
        self.waiting: list[Ticket] = []  # that nobody has begun
        self.versions: dict[Ticket, int] = {}  # of the groups that were begun and not trained
        self.there: set[Ticket] = set()  # those of them that are whole

    def admit(self, iteration: int) -> None:
        """Ask for what may be asked for once this iteration begins."""
        last = min(iteration + self.ahead, self.iterations - 1)
        first = max(self.admitted, iteration)
        self.waiting += [Ticket(i, slot) for i in range(first, last + 1) for slot in self.slots]
        self.admitted = max(self.admitted, last + 1)
        self.coming = max(self.coming, iteration)

    def begin(self, version: int) -> Ticket | None:
        """The next group to sample, with the weights of that version; None: there is none, or it
        could not be trained in time after all that was begun, and waits for newer weights."""
        trained = self.coming + len(self.versions) // len(self.slots)
        late = self.order == "ready" and trained > version + self.staleness
        if late or not self.waiting:
            return None
        ticket = self.waiting.pop(0)
        self.versions[ticket] = version
        return ticket

    def arrive(self, ticket: Ticket) -> None:
        """A group is whole."""
        assert ticket in self.versions and ticket not in self.there, ticket
        self.there.add(ticket)

    def batch(self, iteration: int) -> dict[Ticket, int] | None:
        """The groups that are trained in this iteration, with the versions that began them; None:
        wait for the next one to arrive."""
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
        # Of those left behind, the nth is trained n // batch + 1 iterations from now or later.
        times = enumerate(left, start=len(self.slots))
        late = any(iteration + n // len(self.slots) > v + self.staleness for n, v in times)
        # Nobody is older: what is late all the same (of a larger bound before) can only be trained.
        return None if late and chosen != by_age[: len(chosen)] else chosen

    @property
    def pending(self) -> int:
        """Groups that were asked for and are not whole."""
        return len(self.waiting) + len(self.versions) - len(self.there)

    @property
    def unfinished(self) -> list[Ticket]:
        """Them, in the order in which they are to be asked for again."""
        return sorted({*self.waiting, *self.versions} - self.there)

    def restore(
        self, versions: Mapping[Ticket, int], unfinished: Sequence[Ticket], admitted: int
    ) -> None:
        """Go on with the first ones there, and the others to be begun again."""
        self.versions, self.there = dict(versions), set(versions)
        self.waiting, self.admitted = list(unfinished), admitted
