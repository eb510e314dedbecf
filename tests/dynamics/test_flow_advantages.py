"""Advantages that a group of pictures shares over its denoising steps."""

from functools import partial

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.group import batch_std, group_relative, unbiased_std

SCALES = pytest.mark.parametrize("scale", [None, unbiased_std, batch_std])
STEPS = 5


def pictures(groups, size):
    group = torch.arange(groups).repeat_interleave(size)
    return rollout(torch.ones(groups * size, STEPS, dtype=torch.bool), group)


def test_the_unbiased_scale_is_that_of_dancegrpo(flow):
    estimate = partial(group_relative, scale=unbiased_std, eps=1e-8)
    got = estimate(scores(flow("adv.sum/total")), pictures(2, flow("adv.sum/G").int().item()))
    want = flow("adv.dance_unbiased/total")[:, None].expand(8, STEPS)
    assert_close(got, want, atol=1e-6, rtol=0)


@SCALES
def test_advantages_of_a_group_add_up_to_nothing_at_every_step(scale):
    total = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = group_relative(scores(total), pictures(3, 8), scale=scale)
    assert got.abs().min() > 0
    assert_close(got.view(3, 8, STEPS).sum(1), torch.zeros(3, STEPS).double(), atol=1e-12, rtol=0)


def with_and_without_a_bonus(scale):
    total = torch.randn(24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = pictures(3, 8)
    bonus = torch.tensor([2.0, -1.0, 0.3], dtype=torch.float64)[rows.group]
    estimate = partial(group_relative, scale=scale)
    return estimate(scores(total), rows), estimate(scores(total + bonus), rows)


@pytest.mark.parametrize("scale", [None, unbiased_std])
def test_an_easier_prompt_changes_nothing(scale):
    assert_close(*with_and_without_a_bonus(scale))


def test_with_the_std_over_all_prompts_it_makes_every_advantage_smaller():
    """The reference asks for invariance of every scale; its own global_std does not have it."""
    before, after = with_and_without_a_bonus(batch_std)
    shrink = after / before
    assert_close(shrink, shrink[:1, :1].expand_as(shrink))
    assert shrink[0, 0] < 0.8


@SCALES
def test_equal_rewards_give_exactly_nothing_whatever_they_are(scale):
    """A variance in one pass, E[x^2] - E[x]^2, falls below 0 for many of these."""
    for percent in range(1, 100):
        total = torch.full((24,), percent / 100)
        assert (group_relative(scores(total), pictures(3, 8), scale=scale) == 0).all()
