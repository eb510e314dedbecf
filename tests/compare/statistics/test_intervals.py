"""Statistics of a few seeds, each against a loop written from its definition."""

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy import integrate, stats

from tandem.compare.statistics.intervals import (
    Difference,
    estimate,
    holm,
    paired,
    seeds_needed,
    welch,
)

A, B = [0.61, 0.66, 0.72, 0.69], [0.55, 0.58, 0.62]


def t_quantile(p, freedom):
    """By bisection of an integral of the density, with no table of Student's t."""
    norm = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        mass, _ = integrate.quad(
            lambda t: norm * (1 + t * t / freedom) ** (-(freedom + 1) / 2), 0, middle, limit=200
        )
        low, high = (middle, high) if 0.5 + mass < p else (low, middle)
    return low


def test_three_seeds_by_hand():
    """Mean 2, s = 1, t(2, .975) = 4.3027: 2 ± 4.3027 / sqrt 3."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)


def test_an_interval_is_that_of_its_definition():
    found = estimate(A)
    half = t_quantile(0.975, 3) * statistics.stdev(A) / 2
    assert found.low == pytest.approx(statistics.mean(A) - half, abs=1e-9)
    assert found.high == pytest.approx(statistics.mean(A) + half, abs=1e-9)


def test_one_seed_has_no_interval_and_neither_have_seeds_that_agree():
    """An interval of no width would claim to know the mean of all seeds."""
    assert estimate([0.5]).low is None
    assert (estimate([0.3, 0.1 + 0.2]).low, estimate([0.0, 0.0, 0.0]).high) == (None, None)
    assert welch([0.5], B).p is None
    assert paired([0.5], [0.4]).p is None


def test_welch_is_that_of_its_definition():
    found = welch(A, B)
    parts = [statistics.variance(x) / len(x) for x in (A, B)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    gap = statistics.mean(A) - statistics.mean(B)
    assert found.mean == pytest.approx(gap)
    assert found.low == pytest.approx(gap - t_quantile(0.975, freedom) * error, abs=1e-8)
    # The p-value is where the interval would just touch 0.
    edge = t_quantile(1 - found.p / 2, freedom)
    assert edge * error == pytest.approx(gap, rel=1e-6)


def test_pairs_are_judged_by_their_differences():
    a, b = [0.7, 0.8, 0.9, 0.95], [0.6, 0.72, 0.79, 0.88]
    found = paired(a, b)
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    own = estimate(gaps)
    assert (found.mean, found.low, found.high) == pytest.approx((own.mean, own.low, own.high))
    ma, mb = statistics.mean(a), statistics.mean(b)
    above = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))
    assert found.correlation == pytest.approx(above / below)
    assert (found.pairs, welch(a, b).pairs) == (4, None)
    with pytest.raises(ValueError, match="4 scores cannot be paired with 3"):
        paired(a, b[:3])


def test_equal_scores_of_all_seeds_are_no_proof():
    """Seeds that agree but for rounding have no spread: nothing can be said, not p = 0."""
    for size in (50, 64, 100, 200, 500):
        a = np.random.default_rng(size).integers(size // 2, size, 3)
        for gap in range(1, size // 4):
            found = paired(a / size, (a - gap) / size)
            assert (found.p, found.spread, found.pairs) == (None, 0.0, 3)
            assert found.mean == pytest.approx(gap / size)
            assert welch([a[0] / size] * 3, [(a[0] - gap) / size] * 3).p is None


def test_a_side_that_is_swapped_turns_the_sign_alone():
    one, other = welch(A, B), welch(B, A)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.p == pytest.approx(other.p)


def test_holm_by_hand():
    """.01 * 4; .02 * 3; .04 * 2: the one without a p-value counts as the last; each at least the
    one before it."""
    assert holm([0.04, 0.01, None, 0.02]) == pytest.approx([0.08, 0.04, None, 0.06])
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_holm_rejects_what_stepping_down_rejects():
    random = np.random.default_rng(0)
    for p in random.uniform(0, 0.1, (200, 6)):
        adjusted = holm(p.tolist())
        rejected = set()
        for rank, place in enumerate(np.argsort(p)):
            if p[place] > 0.05 / (6 - rank):
                break
            rejected.add(int(place))
        assert {i for i, x in enumerate(adjusted) if x <= 0.05} == rejected


@pytest.mark.parametrize("pairs", [None, 3])
def test_the_seeds_that_are_needed_have_the_power_and_one_less_has_not(pairs):
    """By simulation of t tests, not by the noncentral t that the answer comes from."""
    found = Difference(mean=1.0, low=None, high=None, p=None, spread=1.0, pairs=pairs)
    n = seeds_needed(found)
    random = np.random.default_rng(1)

    def power(n):
        a, b = random.normal(1, 1, (40_000, n)), random.normal(0, 1, (40_000, n))
        p = stats.ttest_ind(a, b, axis=1) if pairs is None else stats.ttest_1samp(a, 0, axis=1)
        return (p.pvalue < 0.05).mean()

    assert n == (17 if pairs is None else 10)
    assert power(n) >= 0.795
    assert power(n - 1) <= 0.805


def test_what_cannot_be_found_needs_no_number():
    none = Difference(mean=0.0, low=None, high=None, p=None, spread=1.0)
    tiny = Difference(mean=1e-6, low=None, high=None, p=None, spread=1.0)
    assert (seeds_needed(none), seeds_needed(tiny)) == (None, None)


def test_seeds_needed_fall_with_the_difference():
    gaps = [0.5, 1.0, 2.0, 4.0]
    needed = [
        seeds_needed(Difference(mean=g, low=None, high=None, p=None, spread=1.0)) for g in gaps
    ]
    assert all(more > fewer for more, fewer in itertools.pairwise(needed))
