"""Rewards that compare the samples of a prompt: their calls, and the cost of faults."""

import math
import threading
from functools import partial

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.group import group_relative, unbiased_std
from tandem.rewards import Reward, Rewards, batched, groupwise, pairwise
from tandem.types import Prompt


def samples(*sizes):
    """Outputs that are numbers, from 0, in groups of these sizes."""
    prompts = [
        Prompt(id=i, source="s", text="?") for i, size in enumerate(sizes) for _ in range(size)
    ]
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes).long()) * 10
    return [str(i) for i in range(sum(sizes))], prompts, group


def numbers(function, *sizes, **options):
    values, faults = Reward(function, **options)(*samples(*sizes))
    return values, dict(faults)


@pairwise
def larger(first, second, prompt):
    """A perfect judge."""
    return float(int(first) > int(second))


def test_worked_example_of_pairs():
    assert numbers(larger, 3, 2) == ([0.0, 0.5, 1.0, 0.0, 1.0], {})


@pytest.mark.parametrize("declare", [pairwise, pairwise(both_orders=True)])
def test_a_score_is_the_mean_chance_to_win_in_one_order_and_in_both(declare):
    strength = torch.randn(7, generator=torch.Generator().manual_seed(0)).double()

    @declare
    def bradley_terry(first, second, prompt):
        return torch.sigmoid(strength[int(first)] - strength[int(second)])

    chance = torch.sigmoid(strength[:, None] - strength)
    want = (chance.sum(1) - chance.diagonal()) / 6
    assert_close(torch.tensor(numbers(bradley_terry, 7)[0]).double(), want)


@pytest.mark.parametrize("declare", [pairwise, pairwise(both_orders=True)])
def test_a_pairwise_judge_and_group_statistics_are_pref_grpo(axis, declare):
    wins = axis("pref_grpo/wins")
    judge = declare(lambda first, second, prompt: wins[int(first), int(second)])
    rates = torch.tensor(numbers(judge, 3)[0], dtype=torch.float64)
    assert_close(rates, axis("pref_grpo/win_rate"))
    mask, group = torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    got = group_relative(scores(rates), rollout(mask, group), scale=unbiased_std)[:, 0]
    assert_close(got, axis("pref_grpo/advantages"), atol=1e-6, rtol=0)


def test_win_chances_of_a_group_have_mean_one_half():
    @pairwise
    def noisy(first, second, prompt):
        return (7 * int(first) + 3 * int(second)) % 11 / 10

    values, _ = numbers(noisy, 5, 4)
    assert sum(values[:5]) == pytest.approx(2.5)
    assert sum(values[5:]) == pytest.approx(2.0)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_in_both_orders_a_bias_for_a_place_cancels(size):
    fair = pairwise(both_orders=True)(lambda first, second, prompt: 0.9)
    assert numbers(fair, size)[0] == pytest.approx([0.5] * size)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_in_one_order_every_sample_comes_first_in_half_of_its_pairs_give_or_take_one(size):
    seen = []

    @pairwise
    def watched(first, second, prompt):
        seen.append((int(first), int(second)))
        return 0.5

    numbers(watched, size)
    assert {frozenset(pair) for pair in seen} == {
        frozenset((i, j)) for i in range(size) for j in range(i)
    }
    assert len(seen) == size * (size - 1) // 2
    first = [sum(pair[0] == row for pair in seen) for row in range(size)]
    assert all(abs(2 * count - (size - 1)) <= 1 for count in first)


def test_a_sample_with_nobody_beside_it_has_no_chance_to_win_and_the_judge_abstains():
    assert numbers(larger, 1, 2) == ([None, 0.0, 1.0], {"gave none": 1})
    alone, faults = Reward(larger)(["3", "4"], samples(2)[1])  # without groups
    assert (alone, dict(faults)) == ([None, None], {"gave none": 2})


def test_a_judge_without_an_opinion_of_a_pair_leaves_the_pair_out():
    @pairwise
    def partial_judge(first, second, prompt):
        return None if {first, second} == {"0", "2"} else larger(first, second, prompt)

    assert numbers(partial_judge, 3) == ([0.0, 0.5, 1.0], {})
    assert numbers(partial_judge, 1, 1) == ([None, None], {"gave none": 2})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (1.5, "gave a preference of 1.5, outside 0 to 1"),
        (-0.1, "gave a preference of -0.1"),
        (math.nan, "not finite"),
        ("first", "gave str, not a number"),
        (KeyError("x"), "raised KeyError"),
    ],
)
def test_a_pair_that_fails_costs_both_its_samples_and_nobody_else(answer, reason):
    @pairwise
    def broken(first, second, prompt):
        if {first, second} != {"0", "1"}:
            return larger(first, second, prompt)
        if isinstance(answer, Exception):
            raise answer
        return answer

    values, faults = numbers(broken, 3, 2)
    assert values == [None, None, 1.0, 0.0, 1.0]
    [(said, count)] = faults.items()
    assert reason in said
    assert count == 2


def test_a_hanging_pair_costs_its_timeout_and_its_two_samples():
    @pairwise
    def hangs(first, second, prompt):
        if {first, second} == {"3", "4"}:
            threading.Event().wait()
        return larger(first, second, prompt)

    values, faults = numbers(hangs, 3, 2, timeout=0.1)
    assert (values, faults) == ([0.0, 0.5, 1.0, None, None], {"timed out": 2})


def test_a_batch_of_pairs_is_three_lists():
    calls = []

    @batched
    @pairwise
    def all_at_once(firsts, seconds, prompts, *, gain):
        calls.append(len(firsts))
        return [gain * larger(*each) for each in zip(firsts, seconds, prompts, strict=True)]

    got = numbers(partial(all_at_once, gain=1.0), 3, 2, batch_size=3)
    assert got == ([0.0, 0.5, 1.0, 0.0, 1.0], {})
    assert calls == [3, 1]


@groupwise
def rank(outputs, prompt):
    """0 for the smallest, 1 for the largest."""
    order = sorted(map(int, outputs))
    return [order.index(int(output)) / max(len(order) - 1, 1) for output in outputs]


def test_worked_example_of_groups():
    seen = []

    @groupwise
    def watched(outputs, prompt):
        seen.append((outputs, prompt.id))
        return rank(outputs, prompt)

    assert numbers(watched, 3, 1, 2) == ([0.0, 0.5, 1.0, 0.0, 0.0, 1.0], {})
    assert seen == [(["0", "1", "2"], 0), (["3"], 1), (["4", "5"], 2)]


def test_the_rows_of_a_group_need_not_lie_side_by_side():
    _, prompts, _ = samples(4)
    group = torch.tensor([7, 3, 7, 3])
    values, _ = Reward(rank)(["5", "1", "4", "2"], prompts, group)
    assert values == [1.0, 0.0, 0.0, 1.0]
    values, _ = Reward(larger)(["5", "1", "4", "2"], prompts, group)
    assert values == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "reason", "count"),
    [
        ([1.0], "gave 1 numbers for 2 samples", 2),
        (1.0, "gave float, not a list", 2),
        ([1.0, math.nan], "not finite", 1),
        ([None, 1.0], "gave none", 1),
        ({1: 2.0}, "gave no number for it", 1),
        (ZeroDivisionError("division"), "raised ZeroDivisionError", 2),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_a_fault_in_one_group_is_the_fault_of_that_group_only(answer, reason, count, together):
    def broken(outputs, prompt):
        if prompt.id != 1:
            return rank(outputs, prompt)
        if isinstance(answer, Exception) and not together:
            raise answer
        return answer

    def of_all(several, prompts):
        return [broken(*one) for one in zip(several, prompts, strict=True)]

    function = batched(groupwise(of_all)) if together else groupwise(broken)
    values, faults = numbers(function, 3, 2, 2)
    assert [values[i] for i in (0, 1, 2, 5, 6)] == [0.0, 0.5, 1.0, 0.0, 1.0]
    assert values[3:5].count(None) == count
    [(said, seen)] = faults.items()
    assert reason in said
    assert seen == count


def test_groups_reach_the_rewards_of_a_sum_and_only_prompts_that_name_one_are_asked():
    outputs, prompts, group = samples(3, 2)
    others = [Prompt(id=9, source="s", text="?", rewards=("length",))] * 2
    both = Rewards({"larger": Reward(larger), "length": Reward(lambda o, p: len(o), weight=0.5)})
    scores = both([*outputs, "99", "98"], [*prompts, *others], torch.cat([group, group[-2:] + 1]))
    assert_close(scores.total, torch.tensor([0.5, 1.0, 1.5, 0.5, 1.5, 1.0, 1.0]))
    assert both.pop_faults() == {}


def test_no_samples_have_nobody_to_compare():
    assert numbers(larger) == ([], {}) == numbers(rank)


PAINTERS = {
    "of a sample": lambda picture, prompt: picture.zero_().sum().item(),
    "of a batch": batched(lambda pictures, prompts: [one.zero_().sum().item() for one in pictures]),
    "of a pair": pairwise(lambda first, second, prompt: first.zero_().sum() + second.zero_().sum()),
    "of a group": groupwise(lambda pictures, prompt: [one.zero_().sum() for one in pictures]),
}


@pytest.mark.parametrize("name", PAINTERS)
def test_a_reward_that_paints_over_its_pictures_paints_over_nobody_elses(name):
    pictures = torch.full((2, 4, 4, 3), 7, dtype=torch.uint8)
    both = Rewards({"painter": Reward(PAINTERS[name]), "sees": Reward(lambda p, _: p.sum().item())})
    scores = both(list(pictures), [Prompt(id=0, source="s", text="?")] * 2, torch.zeros(2))
    assert scores.parts["painter"].tolist() == [0.0, 0.0 if name != "of a pair" else 1.0]
    assert scores.parts["sees"].tolist() == [7 * 48.0] * 2
    assert (pictures == 7).all()
