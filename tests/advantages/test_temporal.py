"""Sums over later steps, with holes in the mask, against the reference vectors and loops."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import rollout, scores, with_whitening
from torch.testing import assert_close

from tandem.advantages.temporal import (
    gae,
    gae_returns,
    generalised,
    return_to_go,
    reward_to_go,
    step_rewards,
    whiten,
)
from tandem.contracts import facts_of

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}


def inputs(vectors, dtype, mask="in/M"):
    return vectors["in/RTOK"].to(dtype), vectors["in/V"].to(dtype), vectors[mask].bool()


def less_kl(vectors, dtype, coef):
    """Rewards minus a k1 penalty at every step."""
    rewards, _, mask = inputs(vectors, dtype)
    return rewards - coef * ((vectors["in/OLD"] - vectors["in/REF"]).to(dtype) * mask)


def check(got, want, dtype, mask):
    want = want[:, None] * mask if want.ndim == 1 else want
    assert_close(got, want, atol=PRECISION[dtype], rtol=0.0, check_dtype=False)


both = pytest.mark.parametrize("dtype", PRECISION, ids=str)


@both
@pytest.mark.parametrize(
    ("numbers", "name"), [({}, "raw"), ({"gamma": 0.99}, "g.99"), ({"lam": 1.0}, "lam1")]
)
def test_advantages_are_the_reference_ones(vectors, numbers, name, dtype):
    rewards, values, mask = inputs(vectors, dtype)
    check(gae(rewards, values, mask, **numbers)[0], vectors[f"gae/{name}"], dtype, mask)


@both
def test_returns_are_the_reference_ones(vectors, dtype):
    rewards, values, mask = inputs(vectors, dtype)
    check(gae(rewards, values, mask)[1], vectors["gae/ret"], dtype, mask)


@both
def test_holes_are_skipped_as_in_the_reference(vectors, dtype):
    rewards, values, mask = inputs(vectors, dtype, "in/MH")
    advantages, returns = gae(rewards, values, mask)
    check(advantages, vectors["gae/hole"], dtype, mask)
    check(returns, vectors["gae/hole_ret"], dtype, mask)


@both
def test_a_penalty_in_the_reward_is_the_reference_one(vectors, dtype):
    _, values, mask = inputs(vectors, dtype)
    got = gae(less_kl(vectors, dtype, 0.1), values, mask)[0]
    check(got, vectors["gae/kl.1"], dtype, mask)


@both
def test_whitening_is_the_reference_one(vectors, dtype):
    rewards, values, mask = inputs(vectors, dtype)
    white = whiten(gae(rewards, values, mask)[0], mask)
    check(white, vectors["gae/whiten_unb"], dtype, mask)
    check(white * (23 / 22) ** 0.5, vectors["gae/whiten_bias"], dtype, mask)


@both
def test_reinforce_plus_plus_is_the_reference_one(vectors, dtype):
    rewards, _, mask = inputs(vectors, dtype)
    check(return_to_go(rewards, mask, gamma=0.9), vectors["reinforce/rtg_g.9"], dtype, mask)
    check(whiten(return_to_go(rewards, mask), mask), vectors["rpp/adv"], dtype, mask)
    punished = return_to_go(less_kl(vectors, dtype, 0.01), mask)
    check(punished, vectors["rpp/ret_kl.01"], dtype, mask)
    check(whiten(punished, mask), vectors["rpp/adv_kl.01"], dtype, mask)


def case(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    return rewards, values, torch.rand(5, 7, generator=generator) < 0.6


def test_it_is_the_loop_over_trained_steps():
    rewards, values, mask = case()
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.7)
    for row in range(5):
        steps = mask[row].nonzero()[:, 0].tolist()
        for at, t in enumerate(steps):
            later = steps[at:]
            want = 0.0
            for power, (u, after) in enumerate(zip(later, [*later[1:], None], strict=True)):
                value = 0.0 if after is None else values[row, after]
                delta = rewards[row, u] + 0.9 * value - values[row, u]
                want += (0.9 * 0.7) ** power * delta
            assert_close(advantages[row, t], want)
            assert_close(returns[row, t], want + values[row, t])


def test_what_lies_outside_the_mask_changes_nothing():
    rewards, values, mask = case()
    garbage = torch.where(mask, 0.0, torch.tensor(torch.inf))
    before, after = (
        (*gae(r, v, mask), return_to_go(r, mask), whiten(v, mask))
        for r, v in ((rewards, values), (rewards + garbage, values - garbage))
    )
    for one, other in zip(before, after, strict=True):
        assert (other[~mask] == 0).all()
        assert_close(one, other)


def test_holes_taken_out_leave_the_same_numbers():
    rewards, values, _ = case()
    mask = torch.tensor([True, True, False, True, False, True, True]).expand(5, 7)
    kept = mask[0].nonzero()[:, 0]
    short = gae(rewards[:, kept], values[:, kept], mask[:, kept])
    assert_close(gae(rewards, values, mask)[0][:, kept], short[0])


def test_with_nothing_discounted_a_return_is_the_sum_of_what_follows():
    rewards, values, _ = case()
    mask = torch.ones(5, 7, dtype=torch.bool)
    sums = rewards.flip(1).cumsum(1).flip(1)
    assert_close(return_to_go(rewards, mask), sums)
    assert_close(gae(rewards, values, mask, lam=1.0)[1], sums)


def test_whitened_values_have_mean_zero_and_variance_one_over_the_mask():
    rewards, _, mask = case()
    white = whiten(1e3 + 50 * rewards, mask)[mask]
    assert white.mean().abs() < 1e-9
    assert white.var().item() == pytest.approx(1.0)


def test_what_is_the_same_everywhere_becomes_exactly_nothing():
    _, _, mask = case()
    assert (whiten(torch.full((5, 7), 0.3), mask) == 0).all()
    assert (whiten(torch.ones(5, 7), torch.zeros(5, 7, dtype=torch.bool)) == 0).all()


# The same as advantages of samples.

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


def make_case(vectors, dtype, mask="in/M", known=None):
    """The fixture's samples with their scores and the values before the update."""
    inside = vectors[mask].bool()
    rows = rollout(inside, GROUPS, old_values=vectors["in/V"].to(dtype))
    return scores(vectors["in/R"].to(dtype), known), rows


@both
@pytest.mark.parametrize(
    ("estimate", "name", "mask"),
    [
        (generalised, "gae/raw", "in/M"),
        (partial(generalised, gamma=0.99), "gae/g.99", "in/M"),
        (partial(generalised, lam=1.0), "gae/lam1", "in/M"),
        (generalised, "gae/hole", "in/MH"),
        (gae_returns, "gae/ret", "in/M"),
        (gae_returns, "gae/hole_ret", "in/MH"),
        (with_whitening(generalised), "gae/whiten_unb", "in/M"),
        (partial(reward_to_go, gamma=0.9), "reinforce/rtg_g.9", "in/M"),
        (with_whitening(reward_to_go), "rpp/adv", "in/M"),
    ],
)
def test_of_samples_they_are_the_reference_ones(vectors, estimate, name, mask, dtype):
    got = estimate(*make_case(vectors, dtype, mask))
    assert got.dtype == dtype
    check(got, vectors[name], dtype, vectors[mask].bool())


@both
@pytest.mark.parametrize(
    ("estimate", "coef", "name"),
    [
        (generalised, 0.1, "gae/kl.1"),
        (reward_to_go, 0.01, "rpp/ret_kl.01"),
        (with_whitening(reward_to_go), 0.01, "rpp/adv_kl.01"),
    ],
)
def test_a_score_may_be_spread_over_steps(vectors, estimate, coef, name, dtype):
    known, rows = make_case(vectors, dtype)
    got = estimate(replace(known, per_step=less_kl(vectors, dtype, coef)), rows)
    check(got, vectors[name], dtype, rows.mask)


def test_a_score_lies_on_the_last_trained_step():
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    got = step_rewards(scores(torch.tensor([2.0, 3.0, 4.0])), rollout(mask, torch.arange(3)))
    want = torch.zeros(3, 5)
    want[0, 3], want[1, 0] = 2.0, 3.0
    assert_close(got, want)


ESTIMATES = {"generalised": generalised, "reward_to_go": reward_to_go}


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
@pytest.mark.parametrize("spread", [False, True])
def test_a_sample_without_a_score_or_never_trained_gets_nothing(vectors, estimate, spread):
    known = torch.arange(6) != 4
    given, rows = make_case(vectors, torch.float64, known=known)
    rows = replace(rows, baseline=torch.arange(6) == 3)
    if spread:
        given = replace(given, per_step=vectors["in/RTOK"] + 0.1)
    got, rest = estimate(given, rows), [0, 1, 2, 5]
    assert not got[[3, 4]].any()
    per_step = given.per_step[rest] if spread else None
    alone = replace(scores(vectors["in/R"][rest]), per_step=per_step)
    kept = rollout(rows.mask[rest], GROUPS[rest], old_values=rows.old_values[rest])
    assert_close(got[rest], estimate(alone, kept))


def test_a_critic_keeps_its_value_of_a_sample_without_a_score(vectors):
    given, rows = make_case(vectors, torch.float64, known=torch.arange(6) != 4)
    rows = replace(rows, baseline=torch.arange(6) == 3)
    got = gae_returns(given, rows)
    assert_close(got[4], rows.old_values[4] * rows.mask[4])
    assert not got[3].any()
    rest = [0, 1, 2, 5]
    check(got[rest], vectors["gae/ret"][rest], torch.float64, rows.mask[rest])


def test_what_asks_a_critic_says_so():
    assert (
        facts_of(partial(generalised, lam=1.0)).reads
        == facts_of(gae_returns).reads
        == {"old_values"}
    )
    assert facts_of(reward_to_go).reads == frozenset()
