"""Areas, thresholds, saturation and the band of an experiment."""

import math

import numpy as np
import pytest
from scipy import stats

from tandem.compare.curves import area, prediction_band, reached, saturation


def test_the_area_is_a_mean_height():
    assert area([0, 10, 30], [0.0, 1.0, 1.0]) == pytest.approx((5 + 20) / 30)
    assert area([7], [0.4]) == 0.4


def test_a_threshold_is_reached_between_two_points():
    assert reached([0, 100, 200], [0.1, 0.3, 0.7], 0.4) == pytest.approx(125)
    assert reached([5, 10], [0.5, 0.2], 0.5) == 5
    assert reached([0, 1, 2], [0.0, 0.6, 0.1], 0.5) == pytest.approx(5 / 6)  # and lost again
    assert reached([0, 1], [0.0, 0.4], 0.5) is None


def test_a_curve_that_saturates_gives_its_numbers_back():
    x = np.linspace(0, 400, 21)
    found = saturation(x, 0.9 - 0.7 * 2 ** (-x / 80))
    assert (found.start, found.end) == pytest.approx((0.2, 0.9), abs=1e-4)
    assert found.half == pytest.approx(80, rel=1e-3)
    assert found.unexplained < 1e-6


@pytest.mark.parametrize(
    "y",
    [
        np.linspace(0, 1, 21),  # a straight line says nothing of its end
        np.zeros(21),
        np.random.default_rng(0).normal(size=21),  # noise
        [0.1, 0.2, 0.25],  # too few points for three numbers
    ],
    ids=["line", "flat", "noise", "short"],
)
def test_other_curves_get_no_saturation(y):
    assert saturation(np.arange(len(y)), y) is None


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
