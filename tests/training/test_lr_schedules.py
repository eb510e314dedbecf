from functools import partial

import pytest

from tandem.config import build, compose
from tandem.legality.updates import notice
from tandem.training.lr_schedules import constant, cosine, linear

ITERATIONS = 11


def course(schedule):
    return [schedule(iteration, ITERATIONS) for iteration in range(ITERATIONS)]


def test_constant_is_one():
    assert course(constant) == [1.0] * ITERATIONS


def test_linear_falls_in_equal_steps_and_ends_at_final():
    assert course(partial(linear, final=0.5)) == pytest.approx([1 - 0.05 * i for i in range(11)])


def test_cosine_is_half_way_in_the_middle_and_flat_at_both_ends():
    got = course(partial(cosine, final=0.2))
    assert (got[0], got[5], got[10]) == pytest.approx((1.0, 0.6, 0.2))
    assert got[0] - got[1] < got[4] - got[5] > got[9] - got[10]


@pytest.mark.parametrize("schedule", [constant, linear, cosine])
def test_warm_up_rises_in_equal_steps_from_above_zero(schedule):
    got = course(partial(schedule, warmup=4))
    assert got[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize("schedule", [linear, cosine])
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_last_iteration_has_the_final_share_and_later_ones_keep_it(schedule, warmup):
    ends = partial(schedule, warmup=warmup, final=0.1)
    assert [ends(i, ITERATIONS) for i in (10, 11, 50)] == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_run_of_one_iteration_has_the_whole_learning_rate(schedule):
    assert schedule(0, 1, final=0.1) == 1.0


@pytest.mark.parametrize("schedule", [linear, cosine])
@pytest.mark.parametrize("warmup", [0, 3])
def test_every_iteration_of_a_decay_to_nothing_trains(schedule, warmup):
    got = course(partial(schedule, warmup=warmup, final=0.0))
    assert min(got) > 0.01 and got[warmup:] == sorted(got[warmup:], reverse=True)
    assert schedule(ITERATIONS, ITERATIONS, warmup=warmup) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_that_outlasts_the_run_is_told_with_the_rate_that_is_reached(schedule):
    made = build(compose([f"schedule={schedule}", "schedule.warmup=19"]).schedule)
    assert notice(made, 20) is None and made(19, 20) > 0
    assert notice(made, 5) == (
        "warm-up     schedule.warmup=19 of iterations=5: the learning rate ends at 25% of "
        "optimizer.lr; set schedule.warmup below 5, or raise iterations"
    )


def test_a_schedule_without_a_warm_up_needs_no_notice():
    assert notice(lambda iteration, iterations: 0.5, 1) is None
    assert notice(partial(constant, warmup=0), 1) is None
