"""The variances by seeds and by prompts, against loops over textbook sums of squares."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from tandem.compare.statistics.variance_components import (
    estimate_own,
    estimate_shared,
    estimate_unpaired,
    subtract_unrelated,
)

ONE = ["letters"] * 50


def experiment(random, n, prompts, *, seed=0.05, prompt=0.3, rest=0.2, effects=None):
    """[n, P] = seed + prompt + rest, with mean 0."""
    effects = random.normal(0, prompt, prompts) if effects is None else effects
    return random.normal(0, seed, (n, 1)) + effects + random.normal(0, rest, (n, prompts))


def test_two_seeds_and_two_prompts_by_hand():
    """Cells 1 0 / 3 4. Seeds' means 0.5 and 3.5: s^2 = 4.5. Within seeds +-0.5, so prompts' means
    agree and the rest is 4 * 0.5^2 = 1 with one degree of freedom."""
    found = estimate_shared(np.array([[1.0, 0.0], [3.0, 4.0]]), ["a", "a"])
    assert found.mean == 2.0
    assert found.on_these == pytest.approx(4.5 / 2)
    assert found.seeds == pytest.approx((4.5 - 1 / 2) / 2)
    assert found.added == 0  # 0 by prompts is below the 1 / 2 of the residual
    assert found.prompts == pytest.approx(1 / 2 / 2)


def test_seeds_and_prompts_that_add_up_are_given_back():
    """Without a residual every number is that of the two margins."""
    seeds, prompts = [0.1, 0.5, 0.3], [0.0, 0.2, 0.7, 0.1]
    found = estimate_shared(np.add.outer(seeds, prompts), ONE[:4])
    assert found.seeds == found.on_these == pytest.approx(statistics.variance(seeds) / 3)
    assert found.prompts == found.added == pytest.approx(statistics.variance(prompts) / 4)
    half = stats.t.ppf(0.975, found.df) * math.sqrt(found.on_these + found.added)
    assert found.interval == pytest.approx((found.mean - half, found.mean + half))


def components(y, sources):
    """(seed, prompt, residual), each a variance, by the analysis of variance in loops."""
    n, kinds = len(y), sorted(set(sources))
    of = {kind: [p for p in range(len(sources)) if sources[p] == kind] for kind in kinds}
    df = len(sources) - len(kinds)
    left = total = 0.0
    for kind in kinds:
        own_mean = sum(y[s][p] for s in range(n) for p in of[kind]) / n / len(of[kind])
        for p in of[kind]:
            mean = sum(y[s][p] for s in range(n)) / n
            total += n * (mean - own_mean) ** 2
            for s in range(n):
                seed_mean = sum(y[s][q] for q in of[kind]) / len(of[kind])
                left += (y[s][p] - mean - seed_mean + own_mean) ** 2
    rest = left / (n - 1) / df
    prompt = max(0.0, (total / df - rest) / n)
    seed = statistics.variance([statistics.mean(row) for row in y]) - rest / len(sources)
    return max(0.0, seed), prompt, rest


@pytest.mark.parametrize("sources", [["a"] * 9, ["a"] * 4 + ["b"] * 3 + ["c"] * 2])
def test_shared_prompts_are_the_two_way_analysis_of_variance(sources):
    for turn in range(20):
        y = experiment(np.random.default_rng(turn), 4, 9, seed=0.2)
        seed, prompt, rest = components(y.tolist(), sources)
        found = estimate_shared(y, sources)
        assert found.seeds == pytest.approx(seed / 4)
        assert found.added == pytest.approx(prompt / 9)
        assert found.prompts == pytest.approx(prompt / 9 + rest / 36)


def test_the_interval_for_any_set_is_that_of_satterthwaite():
    """The variance of the mean is (MS_seeds + MS_prompts - MS_rest) / nP, as in textbooks."""
    n, prompts = 5, 9
    y = experiment(np.random.default_rng(8), n, prompts, seed=0.3)
    seed, prompt, rest = components(y.tolist(), ONE[:prompts])
    assert seed > 0 < prompt
    squares = {
        prompts * seed + rest: n - 1,
        n * prompt + rest: prompts - 1,
        rest: (n - 1) * (prompts - 1),
    }
    total = (prompts * seed + n * prompt + rest) / n / prompts
    df = total**2 / sum((ms / n / prompts) ** 2 / df for ms, df in squares.items())
    found = estimate_shared(y, ONE[:prompts])
    assert found.on_these + found.added == pytest.approx(total)
    assert found.df == pytest.approx(df)


def test_answers_that_all_score_the_same_show_no_noise():
    for found in (
        estimate_shared(np.full((3, 4), 0.3), ONE[:4]),
        estimate_own([np.zeros(4)] * 3, [ONE[:4]] * 3),
    ):
        assert (found.by_prompts, found.interval, found.enough) == (None, None, None)


def test_sources_are_no_noise():
    """Differences between sources do not count: another set has as many prompts of each."""
    y = experiment(np.random.default_rng(0), 3, 6)
    sources = ["a", "a", "b", "b", "b", "b"]
    apart = y + np.where(np.array(sources) == "a", 5.0, 0.0)
    assert estimate_shared(apart, sources).added == pytest.approx(estimate_shared(y, sources).added)
    assert estimate_shared(apart, ["a"] * 6).added > 1


def test_prompts_of_its_own_are_each_seeds_noise():
    random = np.random.default_rng(1)
    y, sources = experiment(random, 4, 8).tolist(), ["a"] * 5 + ["b"] * 3
    squares = sum(
        sum((row[p] - statistics.mean(part)) ** 2 for p in range(start, end))
        for row in y
        for start, end in ((0, 5), (5, 8))
        for part in [row[start:end]]
    )
    of_seed = squares / (4 * (8 - 2)) / 8
    spread = statistics.variance([statistics.mean(row) for row in y])
    found = estimate_own([np.array(row) for row in y], [sources] * 4)
    assert (found.on_these, found.added) == (pytest.approx(spread / 4), 0)
    assert found.prompts == pytest.approx(of_seed / 4)
    assert found.seeds == pytest.approx(max(0, spread - of_seed) / 4)


def test_one_seed_shows_its_prompts_alone():
    y = np.array([0.0, 1.0, 1.0, 0.0])
    found = estimate_own([y], [ONE[:4]])
    assert found.prompts == pytest.approx(y.var(ddof=1) / 4)
    assert (found.on_these, found.seeds, found.interval, found.enough) == (None, None, None, None)
    assert subtract_unrelated(found, found).interval is None


def test_what_two_variants_find_hard_alike_leaves_their_difference():
    """Prompts differ widely but equally for both, so another set shifts both alike."""
    random = np.random.default_rng(2)
    hard = random.normal(0, 3, 40)
    a, b = (experiment(random, n, 40, effects=hard) for n in (5, 4))
    found = estimate_unpaired(a, b, ONE[:40])
    assert found.added < 0.01 < estimate_shared(a, ONE[:40]).added
    assert found.mean == pytest.approx(a.mean() - b.mean())
    assert found.on_these == pytest.approx(a.mean(1).var(ddof=1) / 5 + b.mean(1).var(ddof=1) / 4)


def test_a_difference_without_pairs_is_that_of_its_definition():
    random = np.random.default_rng(3)
    a, b = experiment(random, 5, 7), experiment(random, 3, 7)
    rest = components(a.tolist(), ONE[:7])[2] / 5 + components(b.tolist(), ONE[:7])[2] / 3
    gaps = [sum(a[:, p]) / 5 - sum(b[:, p]) / 3 for p in range(7)]
    found = estimate_unpaired(a, b, ONE[:7])
    assert found.added == pytest.approx(max(0, statistics.variance(gaps) - rest) / 7)
    assert found.prompts == pytest.approx(found.added + rest / 7)
    seeds = components(a.tolist(), ONE[:7])[0] / 5 + components(b.tolist(), ONE[:7])[0] / 3
    assert found.seeds == pytest.approx(seeds)


def test_the_prompts_that_are_enough_halve_the_seeds_error():
    """That many prompts, with the same components, halve the error by seeds; one fewer does not."""
    y = experiment(np.random.default_rng(4), 6, 30, seed=0.1)
    found, components_of = estimate_shared(y, ONE[:30]), components(y.tolist(), ONE[:30])
    seed, prompt, rest = components_of

    def ratio(prompts):
        return math.sqrt((prompt / prompts + rest / 6 / prompts) / (seed / 6))

    assert ratio(found.enough) <= 0.5 < ratio(found.enough - 1)


def test_estimates_are_right_on_the_mean_and_intervals_hold_the_truth():
    random = np.random.default_rng(5)
    found = [estimate_shared(experiment(random, 5, 50), ONE) for _ in range(400)]
    assert np.mean([one.on_these for one in found]) == pytest.approx(
        (0.05**2 + 0.2**2 / 50) / 5, rel=0.1
    )
    assert np.mean([one.added for one in found]) == pytest.approx(0.3**2 / 50, rel=0.1)
    held = [one.interval[0] <= 0 <= one.interval[1] for one in found]
    assert 0.92 < np.mean(held) < 0.98
