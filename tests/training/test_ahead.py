"""The queue of rollouts ahead, against a model of ten lines, under arrivals in any order."""

import random

import pytest

from tandem.training.ahead import Ahead, Ticket

SLOTS, ITERATIONS = (0, 1, 2), 12
BOUNDS = [("exact", 0, 0), ("exact", 1, 1), ("exact", 3, 3)]
BOUNDS += [("ready", k, a) for k in (0, 1, 2, 4) for a in range(k + 1)]
WORLDS = [(*bound, seed) for bound in BOUNDS for seed in range(20)]


def fits(left, iteration, staleness):
    """Whether the groups of these versions can all be trained in time, |SLOTS| per iteration: at
    most i batches may be due by iteration + i."""
    return all(
        sum(version + staleness <= iteration + i for version in left) <= i * len(SLOTS)
        for i in range(ITERATIONS + staleness + 1)
    )


def play(order, staleness, ahead, seed, room=5):
    """Run a queue whose groups arrive in a random order. Yields the iteration, the groups in
    progress and those arrived, and the batch, or None while there is none."""
    draws = random.Random(seed)
    queue = Ahead(order=order, staleness=staleness, ahead=ahead, slots=SLOTS, iterations=ITERATIONS)
    versions, there, under_way = {}, set(), []
    for iteration in range(ITERATIONS):
        queue.admit(iteration)
        while True:
            while len(under_way) < room and (ticket := queue.begin(iteration)) is not None:
                versions[ticket] = iteration
                under_way.append(ticket)
            before = dict(versions), set(there)
            if (batch := queue.batch(iteration)) is not None:
                break
            yield iteration, *before, None
            arrived = under_way.pop(draws.randrange(len(under_way)))
            there.add(arrived)
            queue.arrive(arrived)
        yield iteration, *before, batch
        for ticket in batch:
            del versions[ticket]
        there -= set(batch)
        for _ in range(draws.randrange(len(under_way) + 1)):  # some arrive during training
            arrived = under_way.pop(draws.randrange(len(under_way)))
            there.add(arrived)
            queue.arrive(arrived)


def test_what_could_not_be_trained_in_time_waits_for_newer_weights():
    """An engine that gets the new weights late starts nothing more with the old ones."""
    queue = Ahead(order="ready", staleness=2, ahead=2, slots=SLOTS, iterations=ITERATIONS)
    queue.admit(0)
    for ticket in [queue.begin(0) for _ in range(9)]:
        queue.arrive(ticket)
    assert len(queue.batch(0)) == 3
    queue.admit(1)
    assert queue.begin(0) is None
    assert queue.begin(1) == Ticket(3, 0)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_every_group_is_trained_once_and_none_too_late(world):
    order, staleness, _, _ = world
    batches = [(step[0], step[3]) for step in play(*world) if step[3] is not None]
    trained = [ticket for _, batch in batches for ticket in batch]
    assert sorted(trained) == [Ticket(i, s) for i in range(ITERATIONS) for s in SLOTS]
    for iteration, batch in batches:
        assert all(0 <= iteration - version <= staleness for version in batch.values())
        if order == "exact":
            assert list(batch) == [Ticket(iteration, slot) for slot in SLOTS]


@pytest.mark.parametrize("world", [world for world in WORLDS if world[0] == "ready"], ids=str)
def test_ready_takes_the_oldest_of_those_that_are_there_as_soon_as_the_others_can_wait(world):
    _, staleness, _, _ = world
    for iteration, versions, there, batch in play(*world):
        oldest = sorted(there, key=lambda ticket: (versions[ticket], ticket))[: len(SLOTS)]
        left = [version for ticket, version in versions.items() if ticket not in oldest]
        may = len(oldest) == len(SLOTS) and fits(left, iteration, staleness)
        assert (batch is not None) == may
        assert batch is None or list(batch) == oldest


@pytest.mark.parametrize("order", ["exact", "ready"])
def test_no_more_iterations_are_asked_for_than_the_bound_and_the_run_have(order):
    queue = Ahead(order=order, staleness=2, ahead=2, slots=SLOTS, iterations=4)
    asked = []
    for iteration in range(4):
        queue.admit(iteration)
        asked.append(queue.admitted)
    assert asked == [3, 4, 4, 4]


def test_what_goes_on_asks_again_for_what_was_not_there():
    queue = Ahead(order="ready", staleness=2, ahead=2, slots=SLOTS, iterations=9)
    queue.admit(0)
    first, second = queue.begin(0), queue.begin(0)
    queue.arrive(second)
    again = Ahead(order="ready", staleness=2, ahead=2, slots=SLOTS, iterations=9)
    again.restore({second: 0}, queue.open_tickets, queue.admitted)
    again.admit(0)
    assert again.begin(1) == first
    assert again.there == {second}
    assert again.pending == queue.pending == 8


def test_what_is_too_late_by_a_smaller_bound_is_trained_at_once():
    queue = Ahead(order="ready", staleness=1, ahead=1, slots=SLOTS, iterations=9)
    queue.restore({Ticket(4, slot): 0 for slot in SLOTS} | {Ticket(5, 0): 0}, [], 6)
    assert list(queue.batch(5)) == [Ticket(4, slot) for slot in SLOTS]


def test_a_smaller_bound_trains_the_surplus_before_it_asks_again():
    queue = Ahead(order="exact", staleness=1, ahead=1, slots=SLOTS, iterations=9)
    surplus = {Ticket(i, slot): 3 for i in (4, 5, 6) for slot in SLOTS}
    queue.restore(surplus, [], 7)
    asked = []
    for iteration in (4, 5, 6):
        queue.admit(iteration)
        assert set(queue.batch(iteration)) == {Ticket(iteration, slot) for slot in SLOTS}
        asked.append(queue.admitted)
    assert asked == [7, 7, 8]


@pytest.mark.parametrize("seed", range(20))
def test_two_ranks_go_on_with_as_many_groups_of_one_rank_as_they_train(seed):
    steps = play("ready", 4, 2, seed)
    trained = {ticket for step in steps if step[0] < 5 for ticket in step[3] or ()}
    left = {Ticket(i, slot) for i in range(7) for slot in SLOTS} - trained
    bound = {"order": "ready", "staleness": 4, "ahead": 2, "iterations": ITERATIONS}
    ranks = [Ahead(slots=SLOTS[rank::2], **bound) for rank in range(2)]
    own = [queue.share(left, len(SLOTS)) for queue in ranks]
    assert [len(part) for part in own] == [4, 2] and {*own[0], *own[1]} == left
    whole = [Ticket(i, slot) for i in (5, 6) for slot in SLOTS]  # what `exact` leaves
    assert ranks[1].share(whole, len(SLOTS)) == [Ticket(5, 1), Ticket(6, 1)]
