"""A hacked reward is distinguished from noise by a rule with verifiable error rates."""

import math

import numpy as np
import pytest
from scipy import stats

from tandem.evaluation.reward_hacking import Change, compare, find_best, find_hacking

PROMPTS = list(range(40))


def line(iteration, trained, judge, *, seed=0, noise=0.1):
    """An evaluation with these means; each prompt has its own noise."""
    random = np.random.default_rng([seed, iteration])
    return {
        "iteration": iteration,
        "prompts": PROMPTS,
        "eval/reward": (trained + noise * random.normal(size=40)).tolist(),
        "eval/reward_judge": (judge + noise * random.normal(size=40)).tolist(),
    }


RUNS = {
    "the judge falls below its start": ([(0.2, 0.5), (0.6, 0.3), (0.8, 0.2)], 0),
    "it rises first, then turns": ([(0.2, 0.5), (0.4, 0.7), (0.7, 0.6), (0.9, 0.5)], 10),
    "both rise": ([(0.2, 0.5), (0.6, 0.6), (0.8, 0.7)], None),
    "both fall": ([(0.6, 0.6), (0.4, 0.4), (0.3, 0.2)], None),
    "the judge stands still": ([(0.2, 0.5), (0.6, 0.5), (0.8, 0.5)], None),
    "it fell once": ([(0.2, 0.5), (0.6, 0.5), (0.8, 0.3)], None),
    "one evaluation": ([(0.2, 0.5)], None),
}


@pytest.mark.parametrize(("means", "since"), RUNS.values(), ids=RUNS)
def test_a_run_is_judged_by_where_its_judge_stood_highest(means, since):
    lines = [line(10 * i, *both) for i, both in enumerate(means)]
    found = find_hacking(lines, ["judge"], 2)
    assert (None if found is None else found.since) == since
    if found is not None:
        assert found.judge == "judge" and found.trained.mean > 0 > found.judged.mean


def test_a_change_is_that_of_a_paired_t_test():
    one, other = line(0, 0.5, 0.5), line(1, 0.55, 0.5)
    change = compare(one, other, "eval/reward")
    t = stats.ttest_rel(other["eval/reward"], one["eval/reward"], alternative="greater")
    assert change.mean / change.error == pytest.approx(t.statistic)
    for level in (t.pvalue * 1.01, t.pvalue / 1.01):
        assert change.is_beyond_noise(level) == (level > t.pvalue)


def test_prompts_without_a_number_count_in_neither():
    one, other = line(0, 0.5, 0.5), line(1, 0.9, 0.2)
    other["eval/reward"][:38] = [None] * 38  # two are left: nothing can be said
    assert compare(one, other, "eval/reward").prompts == 2
    assert find_hacking([one, other, other], ["judge"], 1) is None


def test_a_judge_that_was_never_heard_accuses_nobody():
    lines = [{**line(i, i / 2, 0.5), "eval/reward_judge": [None] * 40} for i in range(3)]
    assert find_best(lines, "judge") is None and find_hacking(lines, ["judge"], 2) is None


def test_prompts_that_all_moved_alike_are_as_sure_as_their_signs():
    """Three of three have one sign in an eighth of cases, ten of ten in a thousandth."""
    for prompts in (3, 6, 10):
        alike = Change(mean=-0.1, error=0.0, prompts=prompts, moved=prompts)
        chance = stats.binomtest(0, prompts, alternative="less").pvalue
        assert alike.is_beyond_noise(chance) and not alike.is_beyond_noise(chance * 0.99)


def test_three_prompts_that_flip_accuse_nobody():
    lines = [line(i, i / 2, 1.0) for i in range(3)]
    for i, one in enumerate(lines):
        one["eval/reward_judge"] = [float(i == 0)] * 3 + [None] * 37
    assert find_hacking(lines, ["judge"], 2) is None


def test_a_change_of_rounding_is_no_change():
    before = line(0, 0.2, 0.5) | {"eval/reward_judge": [1e-7] * 40}
    after = [line(i, 0.9, 0.5) | {"eval/reward_judge": [0.0] * 40} for i in (1, 2)]
    assert find_hacking([before, *after], ["judge"], 2) is None


def test_both_are_compared_over_the_prompts_that_the_judge_scores():
    """In a mixture the trained reward rises in the dataset that the judge does not score."""
    lines = [line(i, 0.5, 0.5 - 0.2 * i) for i in range(3)]
    for i, one in enumerate(lines):
        one["eval/reward"][20:] = [i / 2] * 20
        one["eval/reward_judge"][20:] = [None] * 20
    assert compare(lines[0], lines[2], "eval/reward").is_beyond_noise(0.001)
    assert find_hacking(lines, ["judge"], 2) is None


def test_of_several_judges_the_one_that_fell_furthest_is_named():
    lines = [line(i, 0.2 + 0.3 * i, 0.5) for i in range(3)]
    for i, one in enumerate(lines):
        own = np.array(line(i, 0, 0, seed=7)["eval/reward_judge"])
        one |= {"eval/reward_a": (own - 0.2 * i).tolist(), "eval/reward_b": (own - i).tolist()}
    assert find_hacking(lines, ["a", "b", "judge"], 2).judge == "b"


def test_looking_often_at_noise_accuses_one_run_in_hundreds_at_most():
    """Runs whose reward truly rises and whose judge stays constant, over 12 evaluations."""
    accused = 0
    for run in range(100):
        lines = [line(i, 0.2 + 0.05 * i, 0.5, seed=run) for i in range(12)]
        accused += any(find_hacking(lines[:end], ["judge"], 2) for end in range(2, 13))
    assert accused <= 1 and math.isfinite(accused)
