"""Equalities that make one set of functions enough: AWM is PPO, DPO is DGPO, x0 has one error."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from errors import likelihoods, mean_loss, random_errors, reference_errors, statistics_of
from flows import PRECISION, close
from torch.nn.functional import softplus
from torch.testing import assert_close

from tandem.algorithm import decoupled
from tandem.dynamics.path import x0_from_velocity
from tandem.dynamics.regression import energy
from tandem.dynamics.weighting import by_sigma, by_sigma_squared, ghuber, huber, plain
from tandem.losses import kl, reduction
from tandem.losses.decoupled import dgpo, nft
from tandem.losses.decoupled_centred import crd, of_update
from tandem.losses.group_preference import group_preference
from tandem.losses.policy import nll, ppo
from tandem.losses.preference import dpo
from tandem.losses.sequence import gspo, mean_log_ratio
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import DecoupledBatch

DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)
AWM = {
    "awm.Uniform": plain,
    "awm.t": by_sigma,
    "awm.t**2": by_sigma_squared,
    "awm.huber": huber,
    "awm.ghuber": ghuber,
}
NO_CLIP = {"clip_low": torch.inf, "clip_high": torch.inf}
EXACT = {"atol": 1e-12, "rtol": 1e-9}


def near(dtype):
    return {"atol": PRECISION[dtype], "rtol": PRECISION[dtype], "check_dtype": False}


def gradient_of(value, of):
    return torch.autograd.grad(value, of, retain_graph=True)[0]


# Equality 1: errors of the image are errors of the velocity.


def test_the_loss_of_nft_is_that_of_the_pictures_it_expects(flow):
    """Written in x0, as published: from the noised image, with both of its velocities."""
    own, batch = reference_errors(flow)
    x, x0, sigma, old = (flow(f"fixture/{name}") for name in ("x_t", "x0", "sigma", "v_old"))
    wanted = (flow("fixture/A").clamp(-5, 5) / 10 + 0.5).tolist()
    for beta in (1.0, 0.1):
        good, bad = beta * own + (1 - beta) * old, (1 + beta) * old - beta * own
        parts = []
        for row, r in enumerate(wanted):
            for share, velocity in ((r, good), (1 - r, bad)):
                miss = x0_from_velocity(x, velocity, sigma)[row] - x0[row]
                parts.append(share * miss.square().mean() / miss.abs().mean().detach())
        want = 5 * sum(parts) / beta / 4
        got = mean_loss(partial(nft, beta=beta), batch)
        assert_close(got, want, **EXACT)
        assert_close(gradient_of(got, own), gradient_of(want, own), **EXACT)


def test_a_weighting_by_sigma_squared_is_flow_matching_of_the_picture(flow):
    own, batch = reference_errors(flow)
    x, x0, sigma = (flow(f"fixture/{name}") for name in ("x_t", "x0", "sigma"))
    want = (x0_from_velocity(x, own, sigma) - x0).square().mean(1)
    assert_close(by_sigma_squared(batch.sigma, energy(batch.error))[:, 0], want)
    seen = replace(likelihoods(batch, plain), advantages=torch.ones(4, 1, dtype=torch.float64))
    assert_close(nll(seen)[:, 0].detach(), flow("sft/per_sample"), **close(torch.float64))


# Equality 2: Advantage Weighted Matching is PPO on log-probabilities implied by errors.


@DTYPES
@pytest.mark.parametrize(("case", "weighting"), AWM.items(), ids=AWM)
def test_awm_is_ppo(flow, case, weighting, dtype):
    own, batch = reference_errors(flow, dtype)
    seen = likelihoods(batch, weighting)
    low, high = flow(f"{case}/clip").tolist()
    loss = partial(ppo, clip_low=-low, clip_high=high)
    assert_close(seen.logp[:, 0].detach(), flow(f"{case}/logp"), **close(dtype))
    assert_close(seen.old_logp[:, 0], flow(f"{case}/logp_old"), **close(dtype))
    ratio = (seen.logp - seen.old_logp).exp()[:, 0].detach()
    assert_close(ratio, flow(f"{case}/ratio"), **close(dtype))
    value = mean_loss(loss, seen)
    assert_close(value.detach(), flow(f"{case}/loss"), **close(dtype))
    assert_close(gradient_of(value, own), flow(f"{case}/dloss_dv"), **near(dtype))


def test_fpo_is_ppo_on_the_mean_over_levels_of_the_errors(axis):
    """This is GSPO's ratio of an image whose steps are its noise levels."""
    error = axis("fpo/error").sqrt()[..., None].requires_grad_()
    ones = torch.ones(2, 2, dtype=torch.float64)
    batch = DecoupledBatch(
        error=error, old_error=axis("fpo/old_error").sqrt()[..., None], sigma=ones / 2,
        advantages=torch.tensor([[1.0], [-2.0]], dtype=torch.float64) * ones, mask=ones.bool(),
        group=torch.arange(2),
    )  # fmt: skip
    seen = decoupled.likelihoods(batch, plain)
    moved = (seen.old_logp - seen.logp).abs().max()
    assert moved < axis("fpo/per_level_clamp"), "no level is clamped, and Tandem clamps none"
    assert_close(mean_log_ratio(seen).exp()[:, 0], axis("fpo/ratio"), atol=1e-6, rtol=0)
    value = mean_loss(partial(gspo, clip_low=0.05, clip_high=0.05), seen)
    ratio = (axis("fpo/old_error").mean(1) - error[..., 0].square().mean(1)).exp()
    want = -(ratio[0] - 2 * ratio[1]) / 2
    assert_close(value, want.detach(), atol=1e-6, rtol=0)  # good within the clip, bad above it
    assert_close(gradient_of(value, error), gradient_of(want, error), **EXACT)


def test_the_penalties_of_awm_stand_beside_its_loss(flow):
    """Each adds a gradient of 2 coef (v - v') / (4 rows x 2 dimensions)."""
    own, batch = reference_errors(flow)
    policy = mean_loss(partial(ppo, clip_low=0.05, clip_high=0.05), likelihoods(batch, plain))
    penalties = ((1e-3, kl.regressed), (1.0, kl.to_ema))
    total = policy + sum(coef * mean_loss(loss, batch) for coef, loss in penalties)
    ref, fast = flow("fixture/v_ref"), flow("fixture/v_old")
    pull = (1e-3 * (own - ref) + (own - fast)).detach() / 4
    want = flow("awm.Uniform/dloss_dv") + pull
    assert_close(gradient_of(total, own), want, **close(torch.float64))


# Equality 3: pairs are groups of two, and groups by likelihood are groups by error.


def preferring(batch):
    """The batch with +1 and -1 as advantages."""
    return replace(batch, advantages=batch.advantages.sign())


@DTYPES
@pytest.mark.parametrize("case", ["dpo.beta100", "dpo.beta2000"])
def test_diffusion_dpo_is_dpo_of_half_the_beta(flow, case, dtype):
    beta = float(case.removeprefix("dpo.beta"))
    own, batch = reference_errors(flow, dtype)
    seen = likelihoods(batch, plain)
    winners, losers = (flow(f"{case}/{side}").long() for side in ("winners", "losers"))
    assert seen.advantages[winners].min() > 0 > seen.advantages[losers].max()
    loss = partial(dpo, beta=beta / 2)
    ahead = beta / 2 * (seen.logp - seen.ref_logp)[:, 0].detach()
    # Rounding of logits of 70 is 1e-5 in float32.
    tolerance = near(dtype) | {"atol": PRECISION[dtype] * max(1.0, beta / 100)}
    assert_close(ahead[winners] - ahead[losers], flow(f"{case}/logit"), **tolerance)
    value = mean_loss(loss, seen)
    assert_close(value.detach(), flow(f"{case}/loss"), **tolerance)
    assert_close(gradient_of(value, own), flow(f"{case}/dloss_dv"), **tolerance)
    accuracy = reduce_metrics(own_metrics(loss, seen))["preference/accuracy"]
    assert accuracy == flow(f"{case}/implicit_accuracy").item()
    # A preference of groups of two samples with +1 and -1 is the same, up to beta.
    group = partial(group_preference, beta=beta)
    by_group = mean_loss(group, preferring(seen))
    assert_close(by_group, value, **near(dtype))
    assert_close(gradient_of(by_group, own), gradient_of(value, own), **near(dtype))


def random_pairs(levels=1):
    """Three groups of two, +1 and -1."""
    batch = random_errors(groups=3, size=2, levels=levels)
    first = batch.group.argsort(stable=True)[::2]
    advantages = torch.full_like(batch.advantages, -1.0)
    advantages[first] = 1.0
    return replace(batch, advantages=advantages, mask=torch.ones_like(batch.mask))


def test_swapped_arms_turn_the_margin_around():
    batch = likelihoods(random_pairs(), plain)
    turned = replace(batch, advantages=-batch.advantages)
    got, back = (reduce_metrics(own_metrics(dpo, x)) for x in (batch, turned))
    assert got["preference/margin"] == pytest.approx(-back["preference/margin"])
    assert got["preference/margin"] != 0
    values = [mean_loss(dpo, x).item() for x in (batch, turned)]
    assert values[0] != pytest.approx(values[1])


def test_equal_arms_say_nothing():
    """The same image twice with the same noise: log 2, and no gradient."""
    batch = random_pairs()
    own = torch.randn(3, 1, 5, dtype=torch.float64, requires_grad=True)
    same = replace(batch, error=own[batch.group], ref_error=(own.detach() + 0.1)[batch.group])
    value = mean_loss(dpo, likelihoods(same, plain))
    assert value.item() == pytest.approx(math.log(2), rel=1e-6)
    assert_close(gradient_of(value, own), torch.zeros_like(own))


@pytest.mark.parametrize("beta", [1.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_dgpo_has_the_gradient_of_a_preference_of_groups(beta, seed):
    """At one noise level, up to the factor beta, and without clipping."""
    batch = random_errors(levels=1, seed=seed)
    by_error = mean_loss(partial(dgpo, beta=beta, **NO_CLIP), batch)
    by_likelihood = mean_loss(partial(group_preference, beta=beta), likelihoods(batch, plain))
    got, want = (gradient_of(value, batch.error) for value in (by_error, by_likelihood))
    assert want.any()
    assert_close(beta * got, want, **EXACT)


# Properties, flow_math section 12: 5 of NFT, 6 of DGPO, 7 of CRD.


def test_a_fresh_nft_pulls_by_how_good_a_picture_is_whatever_its_beta():
    batch = random_errors()
    fresh = replace(batch, old_error=batch.error.detach())
    gradients = {
        beta: gradient_of(mean_loss(partial(nft, beta=beta), fresh), batch.error)
        for beta in (0.1, 1.0, 2.0)
    }
    for gradient in gradients.values():
        assert_close(gradient, gradients[1.0], **EXACT)
    level = batch.sigma[..., None] * batch.error
    weight = reduction.sequence_mean(batch.mask) * batch.advantages.clamp(-5, 5) / 5
    matching = level.square().mean(-1) / level.detach().abs().mean(-1).clamp(min=1e-5)
    want = gradient_of((5 * weight * matching).sum(), batch.error)
    assert_close(gradients[1.0], want, **EXACT)
    average = replace(fresh, advantages=torch.zeros_like(batch.advantages))
    for beta in (0.1, 1.0):
        still = gradient_of(mean_loss(partial(nft, beta=beta), average), batch.error)
        assert still.abs().max() < 1e-15


def test_a_perfect_picture_is_matched_by_nft():
    """r = 1, beta = 1: flow matching in x0 times c / |error|, whatever the old policy."""
    batch = random_errors()
    perfect = replace(batch, advantages=torch.full_like(batch.advantages, 5.0))
    level = batch.sigma[..., None] * batch.error
    matching = level.square().mean(-1) / level.detach().abs().mean(-1).clamp(min=1e-5)
    want = 5 * (matching * reduction.sequence_mean(batch.mask)).sum()
    got = mean_loss(nft, perfect)
    assert_close(got, want, **EXACT)
    assert_close(gradient_of(got, batch.error), gradient_of(want, batch.error), **EXACT)


@pytest.mark.parametrize("beta", [1.0, 30.0])
def test_dgpo_has_the_gradient_of_its_objective(beta):
    """The mean over groups and levels of softplus(S), computed group by group."""
    batch = random_errors()
    batch = replace(batch, mask=torch.ones_like(batch.mask))  # all groups have all levels
    scores = []
    for group in range(6):
        rows = batch.group == group
        worse = energy(batch.error[rows]) - energy(batch.ref_error[rows])
        scores.append(beta * (batch.advantages[rows] * worse).sum(0) / 4)
    objective = softplus(torch.stack(scores)).mean()
    loss = partial(dgpo, beta=beta, **NO_CLIP)
    got, want = (gradient_of(x, batch.error) for x in (mean_loss(loss, batch), objective))
    assert_close(beta * got, want, atol=1e-12, rtol=1e-7)  # weights are in float32
    value = reduce_metrics(own_metrics(loss, batch, *statistics_of(loss, batch)))[
        "actor/group_loss"
    ]
    assert value == pytest.approx(objective.item(), rel=1e-12)


def shift_rewards(batch):
    """The batch with a constant per prompt added to the given and to the implicit rewards."""
    constant = 0.3 * (1 + batch.group[:, None].double()) * batch.mask
    given = replace(batch, advantages=batch.advantages + constant)
    old = energy(batch.old_error)[..., None]
    lift = torch.where(batch.mask[..., None], (1 + constant[..., None] / old).sqrt(), 1)
    implied = replace(batch, old_error=batch.old_error * lift)
    return given, implied


def test_a_constant_of_a_prompt_leaves_crd_alone():
    loss = partial(crd, adaptive=False)
    batch = random_errors()
    batch = replace(batch, advantages=batch.advantages.clamp(-2, 2))  # no clip of 5 acts
    want = mean_loss(loss, batch)
    for changed in shift_rewards(batch):
        got = mean_loss(loss, changed)
        assert_close(got, want, **EXACT)
        assert_close(gradient_of(got, batch.error), gradient_of(want, batch.error), **EXACT)
        over_all = [mean_loss(partial(loss, centre=of_update), x) for x in (batch, changed)]
        assert abs(over_all[1] - over_all[0]) > 1e-3
