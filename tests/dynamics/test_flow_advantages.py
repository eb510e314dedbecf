"""Advantages of groups of images, which all denoising steps of a row share."""

from functools import partial

import pytest
import torch
from flows import PRECISION, close
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.clipped import Clipped
from tandem.advantages.group import (
    batch_population_std,
    batch_std,
    group_relative,
    population_std,
    unbiased_std,
)
from tandem.advantages.parts import by_part, gdpo
from tandem.config import build, compose
from tandem.types import Scores

OF_GROUP, OF_ALL = (unbiased_std, population_std), (batch_std, batch_population_std)
SCALES = pytest.mark.parametrize("scale", [None, *OF_GROUP, *OF_ALL])
STEPS = 5


def pictures(groups, size):
    group = torch.arange(groups).repeat_interleave(size)
    return rollout(torch.ones(groups * size, STEPS, dtype=torch.bool), group)


def test_the_unbiased_scale_is_that_of_dancegrpo(flow):
    estimate = partial(group_relative, scale=unbiased_std, eps=1e-8)
    got = estimate(scores(flow("adv.sum/total")), pictures(2, flow("adv.sum/G").int().item()))
    want = flow("adv.dance_unbiased/total")[:, None].expand(8, STEPS)
    assert_close(got, want, atol=1e-6, rtol=0)


def parts_of(flow, dtype=torch.float64):
    """Two rewards of eight images for two prompts, and their weights."""
    parts = {"first": flow("adv.sum/r1", dtype), "second": flow("adv.sum/r2", dtype)}
    weights = dict(zip(parts, flow("adv.sum/weights").tolist(), strict=True))
    total = sum(weights[name] * part for name, part in parts.items())
    return Scores(total=total, parts=parts, scored=torch.ones(8, dtype=torch.bool)), weights


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("scale", "eps", "name"),
    [
        (batch_population_std, 0.0, "adv.sum/global_std"),
        (population_std, 0.0, "adv.sum/group_std"),
        (batch_population_std, 1e-4, "adv.flow_grpo/global_std"),
    ],
)
def test_a_weighted_sum_of_rewards_has_the_reference_advantages(flow, scale, eps, name, dtype):
    both, _ = parts_of(flow, dtype)
    assert_close(both.total, flow("adv.sum/total"), **close(dtype))
    got = group_relative(both, pictures(2, 4), scale=scale, eps=eps)
    assert_close(got, flow(name)[:, None].expand(8, STEPS), **close(dtype))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_rewards_on_their_own_have_the_reference_advantages(flow, dtype):
    both, weights = parts_of(flow, dtype)
    numbers = {"weights": weights, "scale": population_std, "eps": 0.0}
    alone = by_part(both, pictures(2, 4), **numbers)[:, 0]
    want = flow("adv.gdpo/pre_batch_norm")
    assert_close(alone, want, **close(dtype))
    assert_close(want.mean(), flow("adv.gdpo/batch_mean"), **close(dtype))
    assert_close(alone.std(correction=0), flow("adv.gdpo/batch_std"), **close(dtype))
    got = gdpo(both, pictures(2, 4), **numbers)
    assert_close(got, flow("adv.gdpo/final")[:, None].expand(8, STEPS), **close(dtype))
    assert (got[4:6] == 0).all()  # that tie in both parts


OVER_N = "{_target_: tandem.advantages.group.population_std, _partial_: true}"
ALONE = "algorithm.advantage.weights={first: 1, second: 0.5}"
PRESETS = {
    "adv.flow_grpo/global_std": ["algorithm=flow_grpo"],
    "adv.sum/global_std": ["algorithm=flow_grpo", "algorithm.advantage.of.eps=0"],
    "adv.sum/group_std": ["algorithm=tempflow_grpo", "algorithm.advantage.of.eps=0"],
    "adv.dance_unbiased/total": ["algorithm=dance_grpo"],
    "adv.gdpo/final": [
        "algorithm=grpo",
        "algorithm/advantage=gdpo",
        f"algorithm.advantage.scale={OVER_N}",
        "algorithm.advantage.eps=0",
        ALONE,
    ],
    "adv.gdpo/pre_batch_norm": [
        "algorithm=mix_grpo",
        f"algorithm.advantage.of.scale={OVER_N}",
        "algorithm.advantage.of.eps=0",
        ALONE.replace("advantage", "advantage.of"),
    ],
}


@pytest.mark.parametrize(("name", "chosen"), PRESETS.items(), ids=PRESETS)
def test_presets_have_the_reference_advantages(flow, name, chosen):
    advantage = build(compose(["model=tiny_flow", "~recipe", *chosen]).algorithm).advantage
    got = advantage(parts_of(flow)[0], pictures(2, 4))
    assert_close(got, flow(name)[:, None].expand(8, STEPS), atol=1e-6, rtol=0)


def test_advantages_are_clipped_on_either_side(flow):
    both, _ = parts_of(flow)
    plain = partial(group_relative, scale=batch_population_std, eps=1e-4)
    free, kept = (estimate(both, pictures(2, 4)) for estimate in (plain, Clipped(plain, 1.0)))
    want = [-1, -0.412409, -0.13747, 1, 0, 0, 0.109976, -0.109976]
    assert kept[:, 0].tolist() == pytest.approx(want, abs=1e-6)
    assert_close(Clipped(plain)(both, pictures(2, 4)), free)
    scaled = Clipped(plain, 1.0, largest=0.5)(both, pictures(2, 4))
    assert_close(scaled, kept / 2)
    for bounds in ({"bound": 0.0}, {"largest": -1.0}):
        with pytest.raises(ValueError, match="set it above 0"):
            Clipped(plain, **bounds)


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


@pytest.mark.parametrize("scale", [None, *OF_GROUP])
def test_an_easier_prompt_changes_nothing(scale):
    assert_close(*with_and_without_a_bonus(scale))


@pytest.mark.parametrize("scale", OF_ALL)
def test_with_the_std_over_all_prompts_it_makes_every_advantage_smaller(scale):
    """The reference asks for scale invariance, which its own global_std does not have."""
    before, after = with_and_without_a_bonus(scale)
    shrink = after / before
    assert_close(shrink, shrink[:1, :1].expand_as(shrink))
    assert shrink[0, 0] < 0.8


@SCALES
def test_equal_rewards_give_exactly_nothing_whatever_they_are(scale):
    """A one-pass variance, E[x^2] - E[x]^2, is below 0 for many of these."""
    for percent in range(1, 100):
        total = torch.full((24,), percent / 100)
        assert (group_relative(scores(total), pictures(3, 8), scale=scale) == 0).all()
