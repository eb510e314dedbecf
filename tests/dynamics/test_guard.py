"""GRPO-Guard's log-ratio, and what weighs steps alike: both follow from a step's three numbers."""

import math

import pytest
import torch
from flows import NOISY, PRECISION, SDES, batch, close, levels, random_steps, reference_pair, width
from torch.testing import assert_close

from tandem.dynamics.kernels import next_state
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, unscaled_logp
from tandem.dynamics.path import mean_square
from tandem.losses.policy import ppo

EACH_NOISY = pytest.mark.parametrize("name", NOISY)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_grpo_guard_is_ppo_on_a_log_ratio_without_bias_and_scale(flow, dtype):
    velocity, step, old = reference_pair(flow, "Flow-SDE", dtype)
    next_x = flow("grpo/x_next", dtype)
    log_ratio = gaussian_logp(next_x, step) - gaussian_logp(next_x, old)
    guarded = step.std * (log_ratio + gaussian_kl(step, old.mean))
    assert_close(step.std, flow("guard/scale").expand(4), **close(dtype))
    assert_close(guarded.exp().detach(), flow("guard/ratio"), **close(dtype))
    for name in ("mean_z_dmu", "log_ratio"):
        assert_close(guarded.detach(), flow(f"guard.closed_form/{name}"), **close(dtype))
    moved = mean_square(step.mean.detach() - old.mean, step.std)
    assert_close(moved, flow("guard/mse"), **close(dtype))
    loss = ppo(batch(flow, guarded, torch.zeros_like(guarded), dtype), **width(flow, "guard"))
    (gradient,) = torch.autograd.grad(loss.mean(), velocity)
    assert_close(loss.mean().detach(), flow("guard/loss_ff"), **close(dtype))
    assert_close(gradient, flow("guard/dloss_ff_dv"), **close(dtype))
    reweighted = (loss / 0.2).mean().detach()  # 1 / -dt
    assert_close(reweighted, flow("guard/loss_original"), **close(dtype))


def guard_case(kernel, logp):
    """noise . (mean - mean_old), and what is to equal it: [B] each."""
    x, velocity, sigma, next_sigma = random_steps(rows=40, size=(6,), seed=2)
    old = kernel(x, velocity, sigma, next_sigma)
    step = kernel(x, velocity + 0.2 * torch.sin(x), sigma, next_sigma)
    noise = torch.cos(7 * x + 1)
    next_x = next_state(old, noise, storage=torch.float64)
    log_ratio = logp(next_x, step) - logp(next_x, old)
    guarded = step.std * (log_ratio + gaussian_kl(step, old.mean))
    return (noise * (step.mean - old.mean)).mean(1), guarded


@EACH_NOISY
def test_std_times_log_ratio_plus_kl_is_the_noise_along_the_move(name):
    assert_close(*guard_case(NOISY[name], gaussian_logp))


def test_for_cps_as_published_that_does_not_hold():
    want, got = guard_case(NOISY["CPS"], unscaled_logp)
    assert (want - got).abs().max() > 0.1 * want.abs().max()


@EACH_NOISY
def test_only_the_guarded_log_ratio_is_zero_on_average_over_the_noise(name):
    rows = 40_000
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    x, velocity = torch.ones(2, rows, 3, dtype=torch.float64)
    inputs = x, velocity, levels(0.6, x), levels(0.4, x)
    old = NOISY[name](*inputs)
    step = NOISY[name](x, velocity + 1, *inputs[2:])
    next_x = next_state(old, noise, storage=torch.float64)
    log_ratio = gaussian_logp(next_x, step) - gaussian_logp(next_x, old)
    kl = gaussian_kl(step, old.mean)
    guarded = step.std * (log_ratio + kl)
    error = guarded.std().item() / math.sqrt(rows)
    assert abs(guarded.mean().item()) < 4 * error
    bias = log_ratio.mean().item()
    assert bias == pytest.approx(-kl[0].item(), abs=4 * error / step.std[0].item())
    assert bias < -0.1


def imbalance(weights):
    """The largest over the smallest."""
    return (weights.max() / weights.min()).item()


def test_the_weight_that_balances_guarded_steps_is_one_over_the_gain():
    """`delta` of the reference does it for Flow-SDE below sigma = 1, and for Dance-SDE doubles it.

    The gradient of a guarded log-ratio by the velocity is gain x noise / D, so delta x |gain| ought
    not to depend on the step. The reference multiplies by Dance-SDE's (1 + eta^2 (1 - sigma) / (2
    sigma)) / -dt, whose bracket |gain| has already.
    """
    sigma = torch.linspace(0.96, 0.08, 12, dtype=torch.float64)
    next_sigma, x = sigma - 0.07, torch.zeros(12, 1, dtype=torch.float64)
    dt = sigma - next_sigma
    flow, dance = (SDES[name](x, x, sigma, next_sigma) for name in SDES)
    assert imbalance(-flow.velocity_gain / dt) == pytest.approx(1, abs=1e-12)
    assert (-flow.velocity_gain / dt)[0].item() == pytest.approx(1 + 0.7**2 / 2)
    bracket = 1 + 0.3**2 * (1 - sigma) / (2 * sigma)
    assert imbalance(-dance.velocity_gain / dt) == pytest.approx(imbalance(bracket))
    assert imbalance(-dance.velocity_gain * bracket / dt) == pytest.approx(imbalance(bracket) ** 2)


@pytest.mark.parametrize("name", SDES)
def test_flash_grpos_step_weight_is_std_over_gain(name):
    inputs = *_, sigma, next_sigma = random_steps()
    step, dt = SDES[name](*inputs), sigma - next_sigma
    s = step.std / dt.sqrt()
    published = dt.sqrt() / s + s * dt.sqrt() * (1 - sigma) / (2 * sigma)
    assert_close(-step.velocity_gain / step.std, published)
