"""Losses on velocity errors: the reference values and gradients."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from errors import mean_loss, reference_errors, statistics_of
from flows import PRECISION, close
from torch.testing import assert_close

from tandem.dynamics.regression import energy
from tandem.losses import kl
from tandem.losses.decoupled import dgpo, has_gone_far, nft, normalised_x0_error
from tandem.losses.decoupled_centred import (
    crd,
    cross_entropy,
    implicit_reward,
    of_update,
    two_sided,
)
from tandem.metrics import own_metrics, reduce_metrics

DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)


def near(dtype):
    """Absolute up to 1, relative above: a loss of 100 has as many digits as one of 1."""
    return {"atol": PRECISION[dtype], "rtol": PRECISION[dtype], "check_dtype": False}


def value_and_gradient(loss, velocity, batch):
    value = mean_loss(loss, batch)
    return value.detach(), torch.autograd.grad(value, velocity)[0]


@DTYPES
@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_nft_has_the_reference_loss_gradient_and_branches(flow, beta, dtype):
    velocity, batch = reference_errors(flow, dtype)
    loss, case = partial(nft, beta=beta), f"nft.beta{beta}"
    value, gradient = value_and_gradient(loss, velocity, batch)
    assert_close(value, flow(f"{case}/loss"), **near(dtype))
    assert_close(value / 5, flow(f"{case}/unweighted"), **near(dtype))
    assert_close(gradient, flow(f"{case}/dloss_dv"), **near(dtype))
    wanted = kl.optimality(batch.advantages, advantage_clip=5.0)[:, 0]
    assert_close(wanted, flow(f"{case}/r"), **close(dtype))
    step = beta * (batch.error - batch.old_error)
    for side, name in ((1, "l_pos"), (-1, "l_neg")):
        branch = normalised_x0_error(batch.old_error + side * step, batch.sigma)[:, 0]
        assert_close(branch.detach(), flow(f"{case}/{name}"), **close(dtype))
    got = reduce_metrics(own_metrics(loss, batch))
    assert got["actor/optimality"] == pytest.approx(0.5, abs=1e-6)
    assert got["actor/old_deviation"] == pytest.approx(0.005075, abs=1e-6)


def test_beyond_the_clip_a_picture_is_no_better_and_no_worse(flow):
    """Optimality is a share: beyond 1 the other branch would have a negative weight."""
    far = torch.tensor([-9.0, -5.0, 0.0, 2.5, 5.0, 9.0])
    assert kl.optimality(far, advantage_clip=5.0).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]
    _, batch = reference_errors(flow)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None]
    at, beyond = (nft(replace(batch, advantages=size * signs)) for size in (5.0, 9.0))
    assert torch.equal(at, beyond)


@DTYPES
def test_dgpo_has_the_reference_loss_gradient_and_groups(flow, dtype):
    velocity, batch = reference_errors(flow, dtype)
    clip = flow("dgpo/clip").item()
    numbers = {"beta": flow("dgpo/beta").item(), "clip_low": clip, "clip_high": clip}
    loss = partial(dgpo, **numbers)
    value, gradient = value_and_gradient(loss, velocity, batch)
    assert_close(value, flow("dgpo/loss"), **near(dtype))
    assert_close(gradient, flow("dgpo/dloss_dv"), **near(dtype))
    for error, name in (("error", "L"), ("ref_error", "L_ref"), ("fast_error", "L_old")):
        got = energy(getattr(batch, error))[:, 0].detach()
        assert_close(got, flow(f"dgpo/{name}"), **close(dtype))
    (score,) = statistics_of(loss, batch)
    assert_close(score[::2, 0], flow("dgpo/S"), **near(dtype))
    assert_close(score[:, 0].sigmoid(), flow("dgpo/weight"), **close(dtype))
    silent = has_gone_far(batch, clip_low=clip, clip_high=clip)[:, 0]
    assert silent.tolist() == flow("dgpo/detached").bool().tolist()
    rho = (energy(batch.fast_error) - energy(batch.error))[:, 0].exp()
    assert_close(rho.detach(), flow("dgpo/ratio"), **close(dtype))
    metrics = reduce_metrics(own_metrics(loss, batch, score))
    paper = flow("dgpo.paper_value/mean_softplus").item()
    assert metrics["actor/group_loss"] == pytest.approx(paper, abs=10 * PRECISION[dtype])
    assert metrics["actor/group_weight"] == pytest.approx(flow("dgpo/weight").mean().item())
    assert metrics["actor/group_score"] == pytest.approx((5.636 - 3.269) / 2, abs=1e-5)
    assert metrics["actor/clip_frac"] == 0.5


AS_FACTORY = partial(crd, centre=of_update)  # one centre for the prompts of an update
CRD = {
    "crd.uniform_mse": AS_FACTORY,
    "crd.uniform_mse_plain": partial(AS_FACTORY, adaptive=False),
    "crd.tau0.5_mse": partial(AS_FACTORY, tilt=partial(two_sided, temperature=0.5)),
    "crd.uniform_bce": partial(AS_FACTORY, fit=cross_entropy),
}


@DTYPES
@pytest.mark.parametrize(("case", "loss"), CRD.items(), ids=CRD)
def test_crd_has_the_reference_loss_gradient_and_rewards(flow, case, loss, dtype):
    velocity, batch = reference_errors(flow, dtype)
    value, gradient = value_and_gradient(loss, velocity, batch)
    assert_close(value, flow(f"{case}/loss"), **near(dtype))
    assert_close(value / 5, flow(f"{case}/raw"), **near(dtype))
    assert_close(gradient, flow(f"{case}/dloss_dv"), **near(dtype))
    implied = implicit_reward(batch, adaptive="plain" not in case)[:, 0]
    assert_close(implied.detach(), flow(f"{case}/r_theta"), **close(dtype))
    given = kl.optimality(batch.advantages, advantage_clip=5.0)[:, 0]
    assert_close(given, flow(f"{case}/R"), **close(dtype))
    metrics = reduce_metrics(own_metrics(loss, batch, *statistics_of(loss, batch)))
    want = flow(f"{case}/r_theta").mean().item()
    assert metrics["actor/implicit_reward"] == pytest.approx(want, abs=1e-6)


@DTYPES
def test_crd_is_centred_inside_groups_by_itself(flow, dtype):
    _, batch = reference_errors(flow, dtype)
    value = mean_loss(crd, batch).detach()
    assert_close(value, flow("crd.within_group/loss"), **near(dtype))
    metrics = reduce_metrics(own_metrics(crd, batch, *statistics_of(crd, batch)))
    r, given = flow("crd.uniform_mse/r_theta"), flow("crd.uniform_mse/R")
    implied, given = (x - x.view(2, 2).mean(1).repeat_interleave(2) for x in (r, given))
    together = torch.corrcoef(torch.stack([implied, given]).double())[0, 1].item()
    assert metrics["actor/reward_correlation"] == pytest.approx(together, abs=1e-5)
    assert metrics["actor/reward_agreement"] == 0.5  # the second pair is the wrong way around
    assert metrics["actor/old_deviation"] == pytest.approx(0.005075, abs=1e-6)


@pytest.mark.parametrize("adaptive", [True, False])
def test_agreement_is_not_counted_where_the_implied_reward_is_rounding(flow, adaptive):
    """Two of four rows differ from the old policy only by rounding, so their sign is random."""
    _, batch = reference_errors(flow, torch.float32)
    last_bits = torch.tensor([1 + 2e-7, 1 - 2e-7, 0.9, 1.1])[:, None, None]
    near = replace(batch, error=batch.old_error * last_bits)
    loss = partial(crd, centre=of_update, adaptive=adaptive)
    centre_of_rewards = torch.full((*near.mask.shape, 1), 0.5)  # and 0 for the implied ones
    statistics = torch.stack([torch.zeros_like(centre_of_rewards), centre_of_rewards], -1)
    for signs, want in (([1, -1, 1, -1], 1.0), ([-1, 1, 1, 1], 0.5)):
        given = replace(near, advantages=torch.tensor(signs, dtype=torch.float32)[:, None])
        metrics = reduce_metrics(own_metrics(loss, given, statistics))
        assert metrics["actor/reward_agreement"] == want
    same = replace(near, error=batch.old_error)
    assert reduce_metrics(own_metrics(loss, same, statistics)).get("actor/reward_agreement") is None


@DTYPES
def test_distances_to_reference_and_average_are_the_reference_ones(flow, dtype):
    velocity, batch = reference_errors(flow, dtype)
    distance = kl.regressed(batch)
    for name in ("crd.kl_adaptive/kl", "kl/v_based"):
        assert_close(distance[:, 0].detach(), flow(name), **close(dtype))
    plain = 0.1 * distance.mean().detach()
    assert_close(plain, flow("crd.kl_adaptive/nonadaptive"), **close(dtype))
    value = 0.1 * kl.reward_adaptive(batch, least=1e-4 / 0.1).mean()
    assert_close(value.detach(), flow("crd.kl_adaptive/value"), **close(dtype))
    fast = kl.to_ema(batch)[:, 0]
    assert_close(fast.detach(), flow("awm.ema_kl/value"), **close(dtype))
    # By hand: s^2 = 0.49 x 0.4 / 0.6 and 0.49 x 0.8 / 0.2.
    variance = torch.tensor([0.49 * 2 / 3, 0.49 * 2 / 3, 1.96, 1.96])
    elbo = kl.regressed_elbo(batch)[:, 0]
    assert_close(elbo.detach(), flow("kl/v_based") / (2 * variance), **close(dtype))
    for loss in (kl.regressed, kl.reward_adaptive, kl.regressed_elbo, kl.to_ema):
        (gradient,) = torch.autograd.grad(loss(batch).sum(), velocity)
        assert gradient.any(1).all()
