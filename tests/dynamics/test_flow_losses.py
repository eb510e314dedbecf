"""Flow-DPPO and losses that weight steps by their noise, on the four steps of the reference."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from flows import PRECISION, close, reference_batch, width
from torch.testing import assert_close

from tandem.losses.gaussian import (
    equal_steps,
    exact_kl,
    flow_dppo,
    is_too_far,
    noise,
    velocity_moved,
    weighted_ppo,
)
from tandem.losses.policy import ppo
from tandem.losses.soft_clip import sapo
from tandem.metrics import own_metrics, reduce_metrics

DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)


@DTYPES
def test_flow_dppo_has_the_reference_loss_gradient_and_mask(flow, dtype):
    velocity, batch = reference_batch(flow, "Flow-SDE", dtype)
    most = flow("dppo/tau").item()
    assert_close(batch.transition.kl_to_old[:, 0].detach(), flow("dppo/kl"), **close(dtype))
    drop = is_too_far(batch, distance=exact_kl, most=most)[:, 0]
    assert (~drop).tolist() == flow("dppo/keep").bool().tolist()
    away = is_too_far(batch, distance=exact_kl, most=0.0)[:, 0]
    assert away.tolist() == flow("dppo/wrong_direction").bool().tolist()
    loss = flow_dppo(batch, most=most)
    (gradient,) = torch.autograd.grad(loss.mean(), velocity)
    assert_close(loss.mean().detach(), flow("dppo/loss"), **close(dtype))
    assert_close(gradient, flow("dppo/dloss_dv"), **close(dtype))
    got = reduce_metrics(own_metrics(partial(flow_dppo, most=most), batch))
    assert got["actor/dppo_masked"] == 0.25
    assert got["actor/dppo_distance"] == pytest.approx(flow("dppo/kl").mean().item(), abs=1e-6)


def test_the_velocity_is_a_distance_as_well(flow):
    velocity, batch = reference_batch(flow, "Flow-SDE")
    moved = (velocity.detach() - flow("fixture/v_old")).square().mean(1, keepdim=True)
    assert_close(velocity_moved(batch.transition).detach(), moved)
    # Rows 0 and 1 move on in their direction: mean squared distances 0.00625 and 0.00145.
    for most, dropped in {0.001: [0, 1], 0.002: [0], 0.007: []}.items():
        far = is_too_far(batch, distance=velocity_moved, most=most)[:, 0]
        assert far.nonzero()[:, 0].tolist() == dropped
        loss = flow_dppo(batch, distance=velocity_moved, most=most)
        assert (loss[:, 0] == 0).nonzero()[:, 0].tolist() == dropped


def test_no_step_that_comes_back_is_dropped(flow):
    _, batch = reference_batch(flow, "Flow-SDE")
    turned = replace(batch, advantages=-batch.advantages)
    both = [is_too_far(b, distance=exact_kl, most=0.0) for b in (batch, turned)]
    assert (both[0] ^ both[1]).all()


def test_tempflow_is_ppo_times_the_noise_of_a_step(flow):
    velocity, batch = reference_batch(flow, "Flow-SDE")
    clip = width(flow, "grpo")
    loss = weighted_ppo(batch, weight=noise, **clip).mean()
    (gradient,) = torch.autograd.grad(loss, velocity)
    factor = 2.25 * flow("guard/scale")
    assert_close(loss.detach(), factor * flow("grpo/loss"), atol=1e-7, rtol=0)
    assert_close(gradient, factor * flow("grpo/dloss_dv"), atol=1e-7, rtol=0)
    got = reduce_metrics(own_metrics(partial(weighted_ppo, weight=noise, **clip), batch))
    assert got["actor/step_weight"] == pytest.approx(factor.item(), abs=1e-7)
    # The reference counts ratios that leave the band, whatever their advantages.
    outside = flow("grpo/clip_frac_high") + flow("grpo/clip_frac_low")
    assert got["actor/ratio_outside"] == outside.item()


def test_steps_that_are_alike_weigh_the_same(flow):
    _, batch = reference_batch(flow, "Flow-SDE")
    clip = width(flow, "grpo")
    assert_close(weighted_ppo(batch, weight=equal_steps, **clip), ppo(batch, **clip))


def test_sapo_narrows_with_the_dynamics_and_keeps_its_first_gradient(flow):
    """At two widths the gate is equally closed, for any width."""
    _, batch = reference_batch(flow, "Flow-SDE")
    for unit in (1.0, 0.01):
        fresh = replace(batch, logp=batch.old_logp.clone().requires_grad_())
        (gradient,) = torch.autograd.grad(sapo(fresh, width=unit).sum(), fresh.logp)
        assert_close(gradient, -fresh.advantages)
    slopes = []
    for unit in (1.0, 0.01):
        log_ratio = torch.full_like(batch.logp, 2 * unit).log1p().detach().requires_grad_()
        moved = replace(batch, logp=log_ratio, old_logp=torch.zeros_like(log_ratio))
        (gradient,) = torch.autograd.grad(sapo(moved, width=unit).sum(), log_ratio)
        slopes.append(gradient / log_ratio.detach().exp())  # by the ratio itself
    assert_close(*slopes)
    assert (slopes[0] / -batch.advantages).max() < 0.5
