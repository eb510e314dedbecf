"""The stochastic steps: windows and draws, which never include the last step."""

from collections import Counter
from functools import partial
from math import ceil, exp

import pytest

from tandem.dynamics.steps import (
    even,
    every_step,
    exponentially_fewer,
    linearly_fewer,
    random_steps,
    random_window,
    sliding_window,
)

CHOICES = {
    "all": every_step,
    "one": random_steps,
    "two of some": partial(random_steps, sde_steps=[1, 2, 4], num_sde_steps=2),
    "random window": random_window,
    "fast": partial(random_window, length=3, share=0.5),
    "sliding": sliding_window,
    "linearly": partial(sliding_window, stay=linearly_fewer),
    "exponentially": partial(sliding_window, stay=exponentially_fewer, roll_back=False),
}


@pytest.mark.parametrize("steps", [6, 10, 25])
@pytest.mark.parametrize("name", CHOICES)
def test_the_last_step_is_never_stochastic_and_all_others_can_be(name, steps):
    seen = Counter()
    for iteration in range(600):
        chosen = CHOICES[name](steps, iteration, 7)
        assert chosen == CHOICES[name](steps, iteration, 7)
        assert list(chosen) == sorted(set(chosen)) and chosen
        seen.update(chosen)
    reachable = {"two of some": [1, 2, 4], "fast": range((steps + 1) // 2 + 2)}
    assert set(seen) == set(reachable.get(name, range(steps - 1)))


def test_all_are_all_but_the_last():
    assert every_step(4, 0, 0) == (0, 1, 2)


def test_drawn_steps_are_uniform_and_new_in_every_iteration_and_seed():
    draw = partial(random_steps, num_sde_steps=2)
    counts = Counter(step for iteration in range(3000) for step in draw(6, iteration, 0))
    assert set(counts) == set(range(5))
    assert max(abs(count - 1200) for count in counts.values()) < 110  # 4 standard deviations
    assert len({draw(10, iteration, 0) for iteration in range(300)}) == 36
    assert [draw(10, i, 0) for i in range(9)] != [draw(10, i, 1) for i in range(9)]


def test_windows_start_uniformly_in_their_share():
    fast = partial(random_window, length=3, share=0.5)
    starts = Counter(fast(10, iteration, 0)[0] for iteration in range(5000))
    assert set(starts) == set(range(5))
    assert max(abs(count - 1000) for count in starts.values()) < 115  # 4 standard deviations
    assert {len(fast(10, iteration, 0)) for iteration in range(50)} == {3}


def test_a_window_slides_one_step_in_25_iterations_and_rolls_back():
    starts = [sliding_window(25, iteration, 0)[0] for iteration in range(1100)]
    assert starts[:525] == [start for start in range(21) for _ in range(25)]
    assert starts[525:1050] == starts[:525]
    assert sliding_window(25, 524, 0) == (20, 21, 22, 23)


def test_a_window_that_does_not_roll_back_rests_at_the_end():
    still = partial(sliding_window, length=2, stay=partial(even, iterations=3), roll_back=False)
    starts = [still(6, iteration, 0)[0] for iteration in range(15)]
    assert starts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]


def test_windows_may_follow_one_another_without_overlap():
    apart = partial(sliding_window, stride=4, stay=partial(even, iterations=1))
    assert [apart(13, iteration, 0) for iteration in range(4)] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11),
        (0, 1, 2, 3),
    ]


def published_starts(steps, iterations, stay):
    """MixGRPO's counter over the complete windows before the last step."""
    start = passed = 0
    for _ in range(iterations):
        yield start
        passed += 1
        if passed >= stay(start):
            start, passed = (start + 1) % (steps - 4), 0


@pytest.mark.parametrize(
    ("stay", "published"),
    [
        (even, lambda start: 25),
        (linearly_fewer, lambda start: int(25 * (1 - start / 23) + 6 * start / 23)),
        (exponentially_fewer, lambda start: ceil(25 * exp(-0.1 * max(0, start - 13)))),
    ],
    ids=["progressive", "decay", "exp_decay"],
)
def test_windows_stay_as_long_as_those_of_mixgrpo(stay, published):
    ours = [sliding_window(25, iteration, 0, stay=stay)[0] for iteration in range(800)]
    assert ours == list(published_starts(25, 800, published))


def test_decaying_windows_stay_shorter_toward_the_data():
    for stay in (linearly_fewer, exponentially_fewer):
        lengths = [stay(start, 25) for start in range(24)]
        assert lengths[0] == 25 and lengths == sorted(lengths, reverse=True)
        assert 1 <= lengths[-1] < 11


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (partial(every_step, 1), "use 2 steps or more"),
        (partial(random_steps, 5, sde_steps=[2, 4]), "only 0 to 3"),
        (partial(random_steps, 5, num_sde_steps=5), "num_sde_steps=5 must be from 1 to 4"),
        (partial(random_steps, 5, num_sde_steps=0), "num_sde_steps=0 must be from 1 to 4"),
        (partial(random_window, 4, length=4), "a window of 4 steps does not fit"),
        (partial(random_window, 9, share=0.0), "share=0 must"),
        (partial(random_window, 9, share=3), "share=3 must"),
        (partial(sliding_window, 4), "a window of 4 steps does not fit"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choose, says):
    with pytest.raises(ValueError, match=says):
        choose(0, 0)
