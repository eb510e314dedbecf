"""Interquartile means, profiles and wins, each against a loop written from its definition."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tandem.compare.statistics.aggregates import (
    count_paired_wins,
    count_wins,
    interquartile_mean,
    iqm,
    performance_profile,
    resample,
    too_few,
)

TASKS = {
    name: np.random.default_rng(i).normal(0.1 * i, 0.05, 6).tolist()
    for i, name in enumerate(["sort", "copy", "count", "reverse"])
}


def test_wins_are_counted_pair_by_pair():
    a, b = [0.3, 0.5, 0.5], [0.5, 0.2]
    won = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b)
    found = count_wins(a, b)
    assert (found.wins, found.games) == (won, 6) == (4.0, 6)
    assert found.low is None  # three seeds are too few for a bootstrap


def test_from_ten_seeds_on_wins_have_an_interval():
    random = np.random.default_rng(2)
    a, b = random.normal(0.5, 1, 10), random.normal(0, 1, 10)
    found = count_wins(a, b)
    assert found.low < found.share < found.high
    assert count_wins(a, a[:9]).low is None


def test_an_interval_of_wins_holds_the_truth_as_often_as_it_says():
    """Also at the edge, where all games are won and a bootstrap has no width."""
    random = np.random.default_rng(3)
    for gap in (0.0, 1.5):
        truth = stats.norm.cdf(gap / np.sqrt(2))
        drawn = [count_wins(random.normal(gap, 1, 10), random.normal(0, 1, 10)) for _ in range(400)]
        assert np.mean([one.low <= truth <= one.high for one in drawn]) > 0.92
    sure = count_wins(np.arange(10) + 100, np.arange(10))
    assert (sure.share, sure.high) == (1.0, 1.0) and 0.5 < sure.low < 0.95


@pytest.mark.parametrize("size", [20, 21, 22, 23])
def test_the_interquartile_mean_is_the_trimmed_one_of_scipy(size):
    """A score of weight w counts as 4 w scores of weight 1/4, of which whole ones are trimmed."""
    random = np.random.default_rng(size)
    scores, weights = random.normal(size=(50, size)), random.integers(1, 5, size)
    trimmed = stats.trim_mean(np.repeat(scores, 4 * weights, axis=-1), 0.25, axis=-1)
    assert iqm(scores, weights) == pytest.approx(trimmed, abs=1e-12)


def test_the_interquartile_mean_leaves_a_quarter_out_on_each_side():
    scores = np.array([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0])
    assert iqm(scores, np.ones(8)) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert iqm(scores[1:6], np.ones(5)) == pytest.approx((0.75 * (2 + 4) + 3) / 2.5)


def test_each_task_weighs_alike_whatever_its_seeds():
    """More seeds of the hard task make a variant no worse, nor of the easy one better."""
    easy, middle, less, hard = ([x, x + 0.01, x + 0.02] for x in (0.90, 0.50, 0.40, 0.20))
    better = {"easy": easy, "middle": middle, "less": less, "hard": hard * 4}
    worse = {task: [x - 0.03 for x in scores[:3]] for task, scores in better.items()}
    worse["easy"] = worse["easy"] * 4
    found = [interquartile_mean(one).value for one in (better, worse)]
    assert found == pytest.approx([0.46, 0.43])
    shares = [performance_profile(one, [0.45]).share[0] for one in (better, worse)]
    assert shares == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("seeds", [(3, 3, 3, 11), (5, 5, 5, 10), (3, 5, 5, 5, 5), (4,) * 6])
def test_an_interval_is_around_its_own_mean(seeds):
    """In a resample, which has one score of each task less, a task weighs what it weighs in the
    mean, and the same share is left out."""
    random = np.random.default_rng(len(seeds))
    levels = np.linspace(0.9, 0.3, len(seeds))
    tasks = {str(x): random.normal(x, 0.02, n) for x, n in zip(levels, seeds, strict=True)}
    found = interquartile_mean(tasks)
    assert found.low < found.value < found.high
    assert resample(tasks, iqm).mean() == pytest.approx(found.value, abs=0.004)
    profile = performance_profile(tasks, levels)
    assert (profile.low < profile.share + 1e-9).all()
    assert (profile.share < profile.high + 1e-9).all()


def test_the_bootstrap_draws_within_tasks():
    """Tasks without spread leave nothing to resample, however different they are."""
    fixed = {str(i): [float(i)] * 5 for i in range(4)}
    found = interquartile_mean(fixed)
    assert (found.low, found.high) == (None, None)  # width 0 is not certainty
    assert found.value == pytest.approx(1.5)
    assert (found.tasks, found.scores) == (4, 20)
    own = interquartile_mean(TASKS)
    assert own.low < own.value < own.high


def test_the_bootstrap_is_that_of_its_definition():
    """Three tasks of three scores, two of them drawn: all 9^3 resamples, each equally likely."""
    tasks = {"a": [0.1, 0.3, 0.35], "b": [0.2, 0.9, 0.6], "c": [0.4, 0.5, 0.0]}
    every = []
    for drawn in itertools.product(*(itertools.product(x, repeat=2) for x in tasks.values())):
        _, a, b, c, d, _ = sorted(x for pair in drawn for x in pair)
        every.append((a / 2 + b + c + d / 2) / 3)
    every = np.array(every)
    found = interquartile_mean(tasks)
    for edge, share in ((found.low, 0.025), (found.high, 0.975)):
        below, upto = (
            np.mean(np.array(every) < edge - 1e-9),
            np.mean(np.array(every) <= edge + 1e-9),
        )
        assert below - 0.01 <= share <= upto + 0.01  # 2000 of them are drawn
    means = resample(tasks, iqm)
    assert means.mean() == pytest.approx(np.mean(every), abs=0.01)
    assert means.std() == pytest.approx(np.std(every), rel=0.05)


def test_a_profiles_band_is_the_middle_of_shares_that_are_drawn():
    """Eleven runs, six above a threshold, ten drawn: a binomial and its quantiles."""
    found = performance_profile({"a": [0.1] * 5 + [0.6] * 6}, [0.5])
    assert found.low[0] == stats.binom.ppf(0.025, 10, 6 / 11) / 10
    assert found.high[0] == stats.binom.ppf(0.975, 10, 6 / 11) / 10


def test_what_is_drawn_spreads_as_runs_do():
    """The mean of a task of three has variance s^2 / n, with the unbiased s^2."""
    tasks = {"a": [0.1, 0.4, 0.9]}
    drawn = resample(tasks, lambda scores, weights: scores @ weights)
    assert drawn.var() == pytest.approx(np.var(tasks["a"], ddof=1) / 3, rel=0.1)


def test_the_interval_of_wins_is_that_of_its_definition():
    """A scan over all probabilities keeps those that the wins do not contradict."""
    random = np.random.default_rng(6)
    for gap, n, m in ((0.0, 10, 10), (0.8, 12, 17), (2.0, 10, 30)):
        found = count_wins(random.normal(gap, 1, n), random.normal(0, 1, m))
        kept = []
        for i in range(1, 10_000):
            p = i / 10_000
            more = ((n + m) / 2 - 1) * ((1 - p) / (2 - p) + p / (1 + p))
            error = math.sqrt(p * (1 - p) * (1 + more) / (n * m))
            if abs(found.wins / n / m - p) <= 1.959964 * error:
                kept.append(p)
        assert (found.low, found.high) == pytest.approx((kept[0], kept[-1]), abs=2e-4)


def test_few_tasks_scores_or_seeds_of_a_task_are_not_aggregated():
    assert not too_few(TASKS)
    assert too_few({"one": [0.0] * 50}) == "1 tasks and 50 scores; needs 4 and 20"
    assert too_few({str(i): [0.0] * 4 for i in range(4)}) == "4 tasks and 16 scores; needs 4 and 20"
    once = {str(i): [i / 20] for i in range(20)}  # a bootstrap would draw the same score of each
    assert too_few(once) == "0 has one seed, hence no spread"
    assert too_few(once | {str(i): [0.1, 0.2, 0.3] for i in range(19)}).startswith(
        "19 has one seed"
    )
    twice = {str(i): [0.1, 0.5] for i in range(10)}
    assert too_few(twice) == "0 has 2 seeds, needs 3"


def test_a_profile_counts_the_runs_above_each_threshold():
    thresholds = [0.0, 0.1, 0.25, 9.0]
    found = performance_profile(TASKS, thresholds)
    runs = [x for scores in TASKS.values() for x in scores]
    counted = [sum(x > edge for x in runs) / len(runs) for edge in thresholds]
    assert found.share.tolist() == pytest.approx(counted)
    assert (found.low <= found.share).all() and (found.share <= found.high).all()
    assert found.share[-1] == 0


def test_wins_of_pairs_are_counted_seed_by_seed():
    found = count_paired_wins([3, 1, 2, 5], [2, 2, 2, 1])
    assert (found.wins, found.games, found.low) == (2.5, 4, None)


def test_the_interval_of_paired_wins_is_that_of_shares_that_the_wins_do_not_contradict():
    """A scan over all shares: those within 1.96 of their own standard errors."""
    a, b = np.arange(10.0), np.full(10, 2.5)
    found = count_paired_wins(a, b)
    shares = np.linspace(0, 1, 100_001)
    near = shares[np.abs(0.7 - shares) <= 1.959964 * np.sqrt(shares * (1 - shares) / 10)]
    assert (found.low, found.high) == pytest.approx((near[0], near[-1]), abs=2e-5)
    sure = count_paired_wins(a + 100, b)
    assert sure.low < 0.8 and sure.high == pytest.approx(1)
