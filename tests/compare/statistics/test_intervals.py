"""Statistics of a few seeds, each against a loop written from its definition."""

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy import integrate, special, stats

from tandem.compare.statistics.intervals import (
    bonferroni,
    bound_spread,
    estimate,
    find_seeds_needed,
    paired_difference,
    welch,
)

A, B = [0.61, 0.66, 0.72, 0.69], [0.55, 0.58, 0.62]


def t_quantile(p, freedom):
    """By bisection of an integral of the density, without tables of Student's t."""
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
    """Mean 2, s = 1, t(2, 0.975) = 4.3027: 2 ± 4.3027 / sqrt 3."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)


def test_an_interval_is_that_of_its_definition():
    found = estimate(A)
    half = t_quantile(0.975, 3) * statistics.stdev(A) / 2
    assert found.low == pytest.approx(statistics.mean(A) - half, abs=1e-9)
    assert found.high == pytest.approx(statistics.mean(A) + half, abs=1e-9)


def test_one_seed_has_no_interval_and_neither_have_seeds_that_agree():
    """An interval of width 0 would claim to know the mean of all seeds."""
    assert (estimate([0.5]).low, estimate([0.5, 0.6]).low) == (None, None)
    assert (estimate([0.3, 0.1 + 0.2]).low, estimate([0.0, 0.0, 0.0]).high) == (None, None)
    assert (welch([0.5], B).p, welch([0.5, 0.6], B).p) == (None, None)
    assert (paired_difference([0.5], [0.4]).p, paired_difference([0.5, 0.7], [0.4, 0.5]).p) == (
        None,
        None,
    )
    assert paired_difference([0.5, 0.7], [0.4, 0.5]).correlation is None


def test_welch_is_that_of_its_definition():
    found = welch(A, B)
    parts = [statistics.variance(x) / len(x) for x in (A, B)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    gap = statistics.mean(A) - statistics.mean(B)
    assert found.mean == pytest.approx(gap)
    for level in (0.95, 0.99):
        half = t_quantile((1 + level) / 2, freedom) * error
        assert found.interval(level) == pytest.approx((gap - half, gap + half), abs=1e-8)
    # The p-value is where the interval would just touch 0.
    edge = t_quantile(1 - found.p / 2, freedom)
    assert edge * error == pytest.approx(gap, rel=1e-6)


def test_pairs_are_judged_by_their_differences():
    a, b = [0.7, 0.8, 0.9, 0.95], [0.6, 0.72, 0.79, 0.88]
    found = paired_difference(a, b)
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    own = estimate(gaps)
    assert (found.mean, *found.interval()) == pytest.approx((own.mean, own.low, own.high))
    ma, mb = statistics.mean(a), statistics.mean(b)
    above = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))
    assert found.correlation == pytest.approx(above / below)
    assert (found.pairs, welch(a, b).pairs) == (4, None)
    with pytest.raises(ValueError, match="4 scores cannot be paired with 3"):
        paired_difference(a, b[:3])


def test_equal_scores_of_all_seeds_are_no_proof():
    """Seeds that are equal up to rounding have no spread: no statement, rather than p = 0."""
    for size in (50, 64, 100, 200, 500):
        a = np.random.default_rng(size).integers(size // 2, size, 3)
        for gap in range(1, size // 4):
            found = paired_difference(a / size, (a - gap) / size)
            assert (found.p, found.spread, found.pairs) == (None, 0.0, 3)
            assert found.mean == pytest.approx(gap / size)
            assert welch([a[0] / size] * 3, [(a[0] - gap) / size] * 3).p is None


def test_a_side_that_is_swapped_turns_the_sign_alone():
    one, other = welch(A, B), welch(B, A)
    low, high = other.interval()
    assert (one.mean, *one.interval()) == pytest.approx((-other.mean, -high, -low))
    assert one.p == pytest.approx(other.p)


def test_bonferroni_by_hand():
    """Three of four p-values are known, and each is multiplied by four."""
    assert bonferroni([0.04, 0.01, None, 0.3]) == pytest.approx([0.16, 0.04, None, 1.0])


def test_intervals_that_hold_together_leave_out_0_where_the_p_of_all_says_so():
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        found = [
            paired_difference(random.normal(0.7, 1, 5), random.normal(0, 1, 5)) for _ in range(6)
        ]
        for one, p in zip(found, bonferroni([one.p for one in found]), strict=True):
            low, high = one.interval(1 - 0.05 / 6)
            assert (p < 0.05) == (low > 0 or high < 0)
            seen.add(p < 0.05)
    assert seen == {True, False}


@pytest.mark.parametrize("pairs", [False, True])
def test_the_seeds_that_are_needed_have_the_power_and_one_less_has_not(pairs):
    """By simulation of t tests; the function itself uses the noncentral t."""
    n = find_seeds_needed(1.0, 1.0, paired=pairs)
    random = np.random.default_rng(1)

    def power(n):
        a, b = random.normal(1, 1, (40_000, n)), random.normal(0, 1, (40_000, n))
        p = stats.ttest_1samp(a, 0, axis=1) if pairs else stats.ttest_ind(a, b, axis=1)
        return (p.pvalue < 0.05).mean()

    assert n == (10 if pairs else 17)
    assert power(n) >= 0.795
    assert power(n - 1) <= 0.805


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("among", [1, 45, 190])
def test_the_seeds_that_many_pairs_need_are_those_of_an_integral(paired, among):
    """The chance that t exceeds its edge, over the law of the observed spread."""
    level, sides = 1 - 0.05 / among, 1 if paired else 2
    shares = (np.arange(2000) + 0.5) / 2000

    def power(size, n):
        freedom = sides * (n - 1)
        edge = special.stdtrit(freedom, (1 + level) / 2)
        spreads = np.sqrt(special.chdtri(freedom, 1 - shares) / freedom)
        return special.ndtr(size * np.sqrt(n / sides) - edge * spreads).mean()

    for size in (0.147, 0.5, 1.0, 1.75, 2.68, 4.78, 8.0, 30.0):
        n = find_seeds_needed(size, 1.0, paired=paired, level=level)
        assert n is None or power(size, n) > 0.8 - 1e-3
        assert n == 3 or power(size, (n or 1001) - 1) < 0.8 + 1e-3


def test_what_cannot_be_found_needs_no_number():
    found = (find_seeds_needed(effect, 1.0, paired=False) for effect in (0.0, 1e-6))
    assert [*found] == [None, None]


def test_seeds_needed_fall_with_the_difference():
    needed = [find_seeds_needed(gap, 1.0, paired=False) for gap in (0.5, 1.0, 2.0, 4.0)]
    assert all(more > fewer for more, fewer in itertools.pairwise(needed))


def test_the_spread_of_all_seeds_lies_within_its_bounds_as_often_as_they_say():
    """Bounds from samples of five whose true spread is 1."""
    spreads = np.random.default_rng(2).normal(size=(4000, 5)).std(axis=1, ddof=1)
    edges = [bound_spread(s, 4) for s in spreads]
    assert np.mean([low <= 1 <= high for low, high in edges]) == pytest.approx(0.95, abs=0.011)
