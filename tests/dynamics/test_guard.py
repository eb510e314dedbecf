"""GRPO-Guard's log-ratio and the weights that balance steps, from a step's three numbers."""

import math
from functools import partial

import pytest
import torch
from flows import (
    NOISY,
    PRECISION,
    SDES,
    close,
    describe,
    levels,
    random_steps,
    reference_batch,
    width,
)
from torch.testing import assert_close

from tandem.dynamics.kernels import next_state
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, mean_distance, unscaled_logp
from tandem.losses.gaussian import (
    equal_steps,
    grpo_guard,
    guard_ratio,
    inverse_gain,
    inverse_time,
    noise,
)
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import CoupledBatch, Transition, map_fields, pad_steps

EACH_NOISY = pytest.mark.parametrize("name", NOISY)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_grpo_guard_is_ppo_on_a_log_ratio_without_bias_and_scale(flow, dtype):
    velocity, batch = reference_batch(flow, "Flow-SDE", dtype)
    log_ratio = guard_ratio(batch).logp[:, 0].detach()
    assert_close(log_ratio.exp(), flow("guard/ratio"), **close(dtype))
    for name in ("mean_z_dmu", "log_ratio"):
        assert_close(log_ratio, flow(f"guard.closed_form/{name}"), **close(dtype))
    std, moved = batch.transition.std[:, 0], batch.transition.kl_to_old[:, 0].detach()
    assert_close(std, flow("guard/scale").expand(4), **close(dtype))
    assert_close(mean_distance(moved, std), flow("guard/mse"), **close(dtype))
    loss = grpo_guard(batch, weight=None, **width(flow, "guard")).mean()
    (gradient,) = torch.autograd.grad(loss, velocity)
    assert_close(loss.detach(), flow("guard/loss_ff"), **close(dtype))
    assert_close(gradient, flow("guard/dloss_ff_dv"), **close(dtype))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_the_published_guard_divides_by_the_time_of_a_step(flow, dtype):
    velocity, batch = reference_batch(flow, "Flow-SDE", dtype)
    loss = grpo_guard(batch, weight=inverse_time, **width(flow, "guard")).mean()
    (gradient,) = torch.autograd.grad(loss, velocity)
    assert_close(loss.detach(), flow("guard/loss_original"), **close(dtype))
    assert_close(gradient, flow("guard/dloss_ff_dv") / 0.2, atol=5e-5, rtol=0, check_dtype=False)


def test_a_guarded_clip_counts_in_its_own_ratio(flow):
    _, batch = reference_batch(flow, "Flow-SDE")
    numbers = {"weight": None, **width(flow, "guard")}
    got = reduce_metrics(own_metrics(partial(grpo_guard, **numbers), batch))
    # Ratios 1.010, 0.993, 1.014 and 0.989 of advantages 1.2, -0.4, -1.5 and 0.7, clipped at 0.002.
    fractions = [got[f"actor/clip_frac{side}"] for side in ("", "_low", "_high")]
    assert fractions == [0.5, 0.25, 0.25]
    want = flow("guard.closed_form/log_ratio").mean().item()
    assert got["actor/guarded_log_ratio"] == pytest.approx(want, abs=1e-8)


def guard_case(kernel, logp):
    """noise . (mean - mean_old), and the value that it must equal: [B] each."""
    x, velocity, sigma, next_sigma = random_steps(rows=40, size=(6,), seed=2)
    old = kernel(x, velocity, sigma, next_sigma)
    step = kernel(x, velocity + 0.2 * torch.sin(x), sigma, next_sigma)
    noise = torch.cos(7 * x + 1)
    next_x = next_state(old, noise, storage=torch.float64)
    batch = CoupledBatch(
        logp=logp(next_x, step)[:, None],
        old_logp=logp(next_x, old)[:, None],
        advantages=torch.ones(40, 1, dtype=x.dtype),
        mask=torch.ones(40, 1, dtype=torch.bool),
        group=torch.zeros(40, dtype=torch.int64),
        transition=describe(step, old, sigma, next_sigma),
    )
    return (noise * (step.mean - old.mean)).mean(1), guard_ratio(batch).logp[:, 0]


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
    """The largest weight over the smallest."""
    return (weights.max() / weights.min()).item()


def course(name):
    """A row of twelve steps of equal length, sigma from 0.96 to 0.08: [1, 12]."""
    sigma = torch.linspace(0.96, 0.08, 12, dtype=torch.float64)
    next_sigma, x = sigma - 0.07, torch.zeros(12, 1, dtype=torch.float64)
    step = NOISY[name](x, x, sigma, next_sigma)
    facts = (step.std, sigma, next_sigma, step.velocity_gain)
    names = ("std", "sigma", "next_sigma", "velocity_gain")
    return Transition(**{n: fact[None] for n, fact in zip(names, facts, strict=True)})


def test_the_weight_that_balances_guarded_steps_is_one_over_the_gain():
    """`delta` of the reference balances Flow-SDE below sigma = 1. For Dance-SDE it squares the
    imbalance: at eta = 0.3 the last steps have 2.29 times the gradient of the first, not 1.51.

    The gradient of a guarded log-ratio by the velocity is gain x noise / D, so weight x |gain|
    should not depend on the step. The reference multiplies by Dance-SDE's (1 + eta^2 (1 - sigma) /
    (2 sigma)) / -dt, but |gain| already contains this bracket.
    """
    pull = {name: -course(name).velocity_gain * inverse_time(course(name)) for name in NOISY}
    assert imbalance(pull["Flow-SDE"]) == pytest.approx(1, abs=1e-12)
    assert pull["Flow-SDE"][0, 0].item() == pytest.approx(1 + 0.7**2 / 2)
    sigma = course("Dance-SDE").sigma
    bracket = 1 + 0.3**2 * (1 - sigma) / (2 * sigma)
    assert imbalance(pull["Dance-SDE"]) == pytest.approx(imbalance(bracket))
    assert imbalance(pull["Dance-SDE"]) == pytest.approx(1.5147, abs=1e-4)
    published = pull["Dance-SDE"] * bracket
    assert imbalance(published) == pytest.approx(1.5147**2, abs=1e-3)
    assert published.argmax() == 11 and published.argmin() == 0
    for name in NOISY:
        balanced = -course(name).velocity_gain * inverse_gain(course(name))
        assert_close(balanced, torch.ones_like(balanced))


@pytest.mark.parametrize("name", SDES)
def test_flash_grpos_step_weight_is_std_over_gain(name):
    steps = course(name)
    dt = steps.sigma - steps.next_sigma
    s = steps.std / dt.sqrt()
    published = dt.sqrt() / s + s * dt.sqrt() * (1 - steps.sigma) / (2 * steps.sigma)
    weight = equal_steps(steps)
    assert_close(weight, (1 / published) / (1 / published).mean())
    assert imbalance(weight * -steps.velocity_gain / steps.std) == pytest.approx(1)


@pytest.mark.parametrize("weigh", [inverse_time, inverse_gain, noise, equal_steps])
def test_a_step_that_is_not_trained_weighs_nothing_and_moves_no_other(weigh):
    steps = course("Flow-SDE")
    wider = map_fields(steps, lambda fact: pad_steps(fact, 15).flip(1))
    assert_close(weigh(wider)[:, 3:], weigh(steps).flip(1))
    assert not weigh(wider)[:, :3].any()
