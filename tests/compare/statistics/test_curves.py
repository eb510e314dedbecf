"""Areas, thresholds, saturation and the band of an experiment."""

import math

import numpy as np
import pytest
from scipy import stats

from tandem.compare.statistics.curves import (
    FEWEST_FOR_MEDIAN,
    Saturation,
    Unfit,
    area,
    cut,
    find_crossing,
    prediction_band,
    reaching,
    saturation,
)


def test_the_area_is_a_mean_height():
    assert area([0, 10, 30], [0.0, 1.0, 1.0]) == pytest.approx((5 + 20) / 30)
    assert area([7], [0.4]) == 0.4


def test_a_threshold_is_reached_between_two_points():
    assert find_crossing([0, 100, 200], [0.1, 0.3, 0.7], 0.4) == pytest.approx(125)
    assert find_crossing([5, 10], [0.5, 0.2], 0.5) == 5
    assert find_crossing([0, 1, 2], [0.0, 0.6, 0.1], 0.5) == pytest.approx(5 / 6)  # then lost again
    assert find_crossing([0, 1], [0.0, 0.4], 0.5) is None


def test_reaching_and_area_are_those_of_their_definitions():
    """Computed along the curve in small steps."""
    random = np.random.default_rng(5)
    for _ in range(20):
        x = np.cumsum(random.uniform(0.5, 2, 6))
        y = random.uniform(0, 1, 6)
        steps = np.linspace(x[0], x[-1], 4001)
        heights = [height(x, y, at) for at in steps]
        assert area(x, y) == pytest.approx(sum(heights) / len(heights), abs=2e-3)
        first = next((at for at, h in zip(steps, heights, strict=True) if h >= 0.6), None)
        found = find_crossing(x, y, 0.6)
        assert (found is None) == (first is None)
        assert first is None or found == pytest.approx(first, abs=4e-3)


def height(x, y, at):
    i = next(i for i in range(len(x) - 1) if at <= x[i + 1])
    return y[i] + (at - x[i]) / (x[i + 1] - x[i]) * (y[i + 1] - y[i])


def test_a_curve_is_cut_between_its_points_and_at_one():
    assert [z.tolist() for z in cut([0, 10, 20], [0, 1, 3], 15)] == [[0, 10, 15], [0, 1, 2]]
    assert [z.tolist() for z in cut([0, 10, 20], [0, 1, 3], 10)] == [[0, 10], [0, 1]]


def test_a_seed_that_never_gets_there_is_counted_and_not_left_out():
    found = reaching([30, None, 10, 20, None])
    assert (found.median, found.reached, found.n, found.low) == (30, 3, 5, None)
    assert reaching([30, None, 10, None]).median == math.inf  # between 30 and never
    assert reaching([None]).median == math.inf


@pytest.mark.parametrize("n", [6, 7, 12, 20])
def test_the_interval_of_a_median_is_that_of_coins(n):
    """Its ends are as far inside as a fair binomial allows, and no further."""

    def outside(k):
        """Probability that the median lies outside the k-th order statistics from either end."""
        return 2 * sum(math.comb(n, heads) for heads in range(k)) / 2**n

    found = reaching(range(1, n + 1))
    k = int(found.low)
    assert (found.low, found.high) == (k, n + 1 - k)
    assert outside(k) <= 0.05 < outside(k + 1)
    assert reaching(range(FEWEST_FOR_MEDIAN - 1)).low is None


def test_a_curve_that_saturates_gives_its_numbers_back():
    x = np.linspace(0, 400, 21)
    found = saturation(x, 0.9 - 0.7 * 2 ** (-x / 80))
    assert (found.start, found.end) == pytest.approx((0.2, 0.9), abs=1e-4)
    assert found.half == pytest.approx(80, rel=1e-3)
    assert found.unexplained < 1e-6


def test_the_fit_is_the_one_with_the_fewest_squares_left():
    """Against a search over all half times and both ends, in loops."""
    x = [0.0, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0]
    y = [0.11, 0.32, 0.41, 0.62, 0.66, 0.71, 0.78]

    def left(start, end, half):
        return sum(
            (end - (end - start) * 2 ** (-a / half) - b) ** 2 for a, b in zip(x, y, strict=True)
        )

    grid = [
        (left(start / 100, end / 100, half / 20), start / 100, end / 100, half / 20)
        for start in range(5, 16)
        for end in range(70, 91)
        for half in range(20, 101)
    ]
    squares, start, end, half = min(grid)
    found = saturation(x, y)
    assert (found.start, found.end, found.half) == pytest.approx((start, end, half), abs=0.06)
    mean = sum(y) / len(y)
    assert found.unexplained * sum((b - mean) ** 2 for b in y) <= squares


def test_an_accuracy_does_not_saturate_above_one():
    x = np.arange(9)
    y = 1.1 - 1.1 * 2 ** (-x / 4)
    assert saturation(x, y).end == pytest.approx(1.1, abs=1e-4)
    found = saturation(x, y, within=(0, 1))
    assert found.end == pytest.approx(1, abs=1e-6) and found.unexplained > 1e-4


@pytest.mark.parametrize(
    ("y", "why"),
    [
        (np.linspace(0, 1, 21), "it covers less than one half time"),
        (np.zeros(21), "it is flat"),
        (np.random.default_rng(0).normal(size=21), "of its variance is unexplained"),
        ([0.1, 0.2, 0.25], "3 points, needs 6"),
        ([0.0, *[0.9] * 9], "it saturates before the second point"),
    ],
    ids=["line", "flat", "noise", "short", "step"],
)
def test_other_curves_get_no_saturation_and_say_why(y, why):
    found = saturation(np.arange(len(y)), y)
    assert isinstance(found, Unfit) and why in found.why


def test_a_fall_saturates_too():
    x = np.linspace(0, 10, 11)
    found = saturation(x, 0.2 + 0.5 * 2 ** (-x / 2))
    assert isinstance(found, Saturation) and found.end == pytest.approx(0.2, abs=1e-4)


def test_a_band_needs_ten_seeds():
    assert prediction_band([0, 1], np.zeros((9, 2))) is None


def test_a_band_is_that_of_its_definition():
    curves = np.random.default_rng(3).normal(0.5, 0.1, (12, 5))
    band = prediction_band(range(5), curves)
    edge = stats.t.ppf(1 - 0.025 / 5, 11)
    for point in range(5):
        mean = sum(curves[:, point]) / 12
        s = math.sqrt(sum((c - mean) ** 2 for c in curves[:, point]) / 11)
        assert band.high[point] == pytest.approx(mean + edge * s * math.sqrt(1 + 1 / 12))
        assert band.low[point] == pytest.approx(mean - edge * s * math.sqrt(1 + 1 / 12))


def test_a_run_that_ended_before_is_outside_from_there_on():
    band = prediction_band(range(3), np.random.default_rng(4).normal(0, 1, (10, 3)))
    assert band.leaves([0.0, 0.0, math.nan]).tolist() == [False, False, True]
    assert band.leaves([99.0, 0.0, -99.0]).tolist() == [True, False, True]


@pytest.mark.parametrize("n", [1, 5, 6, 20, 1100])
def test_the_interval_of_a_median_counts_coins(n):
    found = reaching([float(place) for place in range(1, n + 1)])
    below = [k for k in range(1, n + 1) if stats.binom.cdf(k - 1, n, 0.5) <= 0.025]
    assert found.low == (max(below) if below else None)
    assert found.high == (n + 1 - max(below) if below else None)
