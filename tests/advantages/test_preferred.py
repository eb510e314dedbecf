"""Win rates within a group: by hand, against a loop, and without opponents."""

from dataclasses import replace

import pytest
import torch
from records import rollout, scores

from tandem.advantages.group import group_relative, unbiased_std
from tandem.advantages.preference import extremes, preferred, win_rate, win_rates

GROUPS = torch.tensor([3, 3, 3, 8, 8, 8])


def rows(group=GROUPS, mask=None, **known):
    return rollout(torch.ones(len(group), 2).bool() if mask is None else mask, group, **known)


def of(total, scored=None, **known):
    scored = None if scored is None else torch.tensor(scored)
    return preferred(scores(torch.tensor(total), scored), rows(**known))[:, 0].tolist()


def test_the_best_of_a_group_is_preferred_to_its_worst():
    assert of([0.2, 0.9, 0.5, 3.0, 1.0, 2.0]) == [-1, 1, 0, 1, -1, 0]


def test_of_equals_the_first_one_counts():
    assert of([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]) == [1, -1, 0, -1, 1, 0]


def test_no_sample_is_preferred_to_itself():
    # Other sources pair a group that ties with itself; float noise is a tie.
    assert of([0.7, 0.7, 0.7, 0.1, 0.1 + 1e-7, 0.1]) == [0] * 6


def test_samples_without_a_score_or_without_a_trained_step_are_out():
    scored = [True, False, True, True, False, False]
    assert of([0.0, 5.0, 1.0, 2.0, 1.0, 1.0], scored) == [-1, 0, 1, 0, 0, 0]
    mask = torch.ones(6, 2).bool()
    mask[1] = False
    assert of([0.5, 0.0, 1.0, 1.0, 1.0, 1.0], mask=mask) == [-1, 0, 1, 0, 0, 0]
    baseline = torch.tensor([False, False, True, False, False, False])
    assert of([0.5, 0.0, 1.0, 1.0, 1.0, 1.0], baseline=baseline) == [1, -1, 0, 0, 0, 0]


def test_only_trained_steps_have_an_advantage():
    mask = torch.tensor([[True, True], [True, False]])
    got = preferred(scores(torch.tensor([0.0, 1.0])), rollout(mask, torch.tensor([0, 0])))
    assert got.tolist() == [[-1, -1], [1, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_loop_over_groups_says_the_same_in_any_order_of_rows(seed):
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 6, (40,), generator=generator)
    score = torch.randint(0, 5, (40,), generator=generator).double()
    usable = torch.rand(40, generator=generator) < 0.7
    want = torch.zeros(40, dtype=torch.float64)
    for g in group.unique().tolist():
        places = [i for i in range(40) if group[i] == g and usable[i]]
        if places and max(score[places]) > min(score[places]):
            want[max(places, key=lambda i: (score[i].item(), -i))] = 1
            want[min(places, key=lambda i: (score[i].item(), i))] = -1
    assert extremes(score, usable, group).tolist() == want.tolist()


def test_a_pair_of_the_data_is_as_its_scores_say():
    pair = rows(torch.tensor([0, 0]))
    advantages = preferred(scores(torch.tensor([1.0, 0.0])), pair)
    assert advantages[:, 0].tolist() == [1, -1]
    alone = replace(pair, baseline=torch.tensor([False, True]))
    assert not preferred(scores(torch.tensor([1.0, 0.0])), alone).any()


@pytest.mark.parametrize("seed", range(3))
def test_a_win_rate_is_that_of_a_loop_over_all_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    total = torch.randint(0, 4, (12,), generator=generator).double()  # with ties
    known = torch.rand(12, generator=generator) < 0.8
    group = torch.randint(0, 3, (12,), generator=generator)
    got = win_rates(total, known, group)
    for row in range(12):
        others = [o for o in range(12) if o != row and group[o] == group[row] and known[o]]
        won = [1.0 if total[row] > total[o] else 0.5 * (total[row] == total[o]) for o in others]
        want = sum(won) / len(won) if won and known[row] else 0.0
        assert got[row].item() == pytest.approx(float(want))


def test_how_far_scores_are_apart_within_a_group_counts_for_nothing():
    """An outlier does not matter either: only the order of the scores does."""
    near, far = ([0.50, 0.51, 0.52, 0.0, 1.0, 9.0], [0.1, 0.2, 0.9, 0.0, 1.0, 1000.0])
    got = [win_rate(scores(torch.tensor(x)), rows())[:, 0] for x in (near, far)]
    assert got[0].tolist() == got[1].tolist() == pytest.approx([-1, 0, 1, -1, 0, 1], abs=1e-5)
    by_score = [
        group_relative(scores(torch.tensor(x)), rows(), scale=unbiased_std)[:, 0]
        for x in (near, far)
    ]
    assert by_score[0].tolist() != pytest.approx(by_score[1].tolist(), abs=1e-2)
