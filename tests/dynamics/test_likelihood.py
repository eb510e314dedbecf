"""Log-probabilities of steps, their ratios, and the distances of two policies on a step."""

from types import SimpleNamespace

import pytest
import torch
from flows import (
    KERNELS,
    NOISY,
    PRECISION,
    batch,
    close,
    levels,
    random_steps,
    reference_pair,
    reference_step,
    width,
)
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from tandem.dynamics import likelihood
from tandem.dynamics.kernels import next_state, ode
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, unscaled_logp
from tandem.dynamics.path import x0_from_velocity
from tandem.losses.kl import timeless
from tandem.losses.policy import ppo

DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)
EACH_NOISY = pytest.mark.parametrize("name", NOISY)


@DTYPES
def test_ppo_on_a_flow_has_the_reference_loss_and_gradient(flow, dtype):
    velocity, step, old = reference_pair(flow, "Flow-SDE", dtype)
    next_x = flow("grpo/x_next", dtype)
    logp, old_logp = gaussian_logp(next_x, step), gaussian_logp(next_x, old)
    assert_close(step.mean.detach(), flow("grpo/mean"), **close(dtype))
    assert_close(old.mean, flow("grpo/mean_old"), **close(dtype))
    assert_close(logp.detach(), flow("grpo/logp"), **close(dtype))
    assert_close(old_logp, flow("grpo/logp_old"), **close(dtype))
    assert_close((logp - old_logp).exp().detach(), flow("grpo/ratio"), **close(dtype))
    assert_close((logp - old_logp).detach(), flow("guard/mean_dlogp"), **close(dtype))
    loss = ppo(batch(flow, logp, old_logp, dtype), **width(flow, "grpo")).mean()
    (gradient,) = torch.autograd.grad(loss, velocity)
    assert_close(loss.detach(), flow("grpo/loss"), **close(dtype))
    assert_close(gradient, flow("grpo/dloss_dv"), **close(dtype))


@DTYPES
def test_cps_as_published_has_the_reference_ratio(flow, dtype):
    _, step, old = reference_pair(flow, "CPS", dtype)
    noise = torch.tensor([[0.3, -1], [1.1, 0.2], [-0.7, 0.4], [0, 1.5]], dtype=dtype)
    next_x = next_state(old, noise, storage=dtype)
    logp, old_logp = unscaled_logp(next_x, step).detach(), unscaled_logp(next_x, old)
    assert_close(logp, flow("cps.ratio/logp"), **close(dtype))
    assert_close(old_logp, flow("cps.ratio/logp_old"), **close(dtype))
    assert_close((logp - old_logp).exp(), flow("cps.ratio/ratio"), **close(dtype))


@DTYPES
def test_distances_that_papers_call_kl_are_one_in_other_units(flow, dtype):
    step = reference_step(KERNELS["Flow-SDE"], flow, flow("fixture/v", dtype), dtype)
    ref = reference_step(KERNELS["Flow-SDE"], flow, flow("fixture/v_ref", dtype), dtype)
    kl, std, gain = gaussian_kl(step, ref.mean), step.std, step.velocity_gain
    assert_close(kl, flow("kl/exact_gaussian"), **close(dtype))
    assert_close(likelihood.mean_distance(kl, std), flow("kl/x_based"), **close(dtype))
    velocity = likelihood.velocity_distance(kl, std, gain)
    assert_close(velocity, flow("kl/v_based"), **close(dtype))
    ends = {"sigma": levels(0.6, ref.mean), "next_sigma": levels(0.4, ref.mean)}
    batch = SimpleNamespace(transition=SimpleNamespace(kl_to_ref=kl, **ends))
    assert_close(timeless(batch), flow("kl/flow_grpo"), **close(dtype))
    assert_close(gain, -0.2 * flow("kl/coef").expand(4), **close(dtype))


@DTYPES
def test_the_kl_that_dppo_masks_by_is_the_reference_one(flow, dtype):
    _, step, old = reference_pair(flow, "Flow-SDE", dtype)
    assert_close(gaussian_kl(step, old.mean).detach(), flow("dppo/kl"), **close(dtype))


@DTYPES
@EACH_NOISY
def test_matching_a_teacher_on_a_noisy_step_is_twice_the_kl(flow, name, dtype):
    step = reference_step(NOISY[name], flow, flow("fixture/v", dtype), dtype)
    teacher = reference_step(NOISY[name], flow, flow("fixture/v_ref", dtype), dtype)
    want = flow(f"opd.xt.{name}/loss")
    assert_close(2 * gaussian_kl(step, teacher.mean).mean(), want, **close(dtype))


@DTYPES
def test_matching_a_teacher_without_noise_is_one_error_in_three_units(flow, dtype):
    x, mine, its = (flow(name, dtype) for name in ("grpo/x", "fixture/v", "fixture/v_ref"))
    sigma, next_sigma = levels(0.6, x), levels(0.4, x)
    pairs = {
        "xt": [ode(x, v, sigma, next_sigma).mean for v in (mine, its)],
        "v": [mine, its],
        "x0": [x0_from_velocity(x, v, sigma) for v in (mine, its)],
    }
    for name, (student, teacher) in pairs.items():
        error = likelihood.mean_square(student - teacher, sigma).mean()
        assert_close(error, flow(f"opd.{name}.ODE/loss"), **close(dtype))


@EACH_NOISY
def test_a_density_and_its_kl_are_those_of_torch(name):
    inputs = x, velocity, sigma, next_sigma = random_steps(size=(2, 3, 4))
    step = NOISY[name](*inputs)
    other = NOISY[name](x, velocity + 0.3 * x, sigma, next_sigma)
    next_x = next_state(step, torch.cos(7 * x), storage=torch.float64)
    mine = Normal(step.mean, step.std[:, None, None, None])
    its = Normal(other.mean, step.std[:, None, None, None])
    assert_close(gaussian_logp(next_x, step), mine.log_prob(next_x).mean((1, 2, 3)))
    assert_close(gaussian_kl(step, other.mean), kl_divergence(mine, its).mean((1, 2, 3)))


@pytest.mark.parametrize("size", [1, 768])
@EACH_NOISY
def test_the_gradient_of_the_kl_is_the_closed_form(name, size):
    x, velocity, sigma, next_sigma = random_steps(size=(size,))
    step = NOISY[name](x, velocity.requires_grad_(), sigma, next_sigma)
    ref = NOISY[name](x, velocity.detach() + 0.1 * x, sigma, next_sigma)
    (gradient,) = torch.autograd.grad(gaussian_kl(step, ref.mean).sum(), velocity)
    per_row = (step.velocity_gain / step.std.square())[:, None]
    want = per_row * (step.mean - ref.mean).detach() / size
    assert_close(gradient, want, rtol=0, atol=1e-10)


@EACH_NOISY
def test_the_gradient_of_a_log_probability_is_the_closed_form(name):
    x, velocity, sigma, next_sigma = random_steps(size=(5,))
    step = NOISY[name](x, velocity.requires_grad_(), sigma, next_sigma)
    next_x = next_state(step, torch.cos(7 * x), storage=torch.float64).requires_grad_()
    for logp, scale in ((gaussian_logp, 1 / step.std.square()), (unscaled_logp, 2)):
        value = logp(next_x, step).sum()
        (gradient,) = torch.autograd.grad(value, velocity, retain_graph=True)
        want = (scale * step.velocity_gain)[:, None] * (next_x - step.mean).detach() / 5
        assert_close(gradient, want)
    with pytest.raises(RuntimeError, match="to not have been used"):
        torch.autograd.grad(value, next_x)  # a state that was reached is a constant


def test_the_published_log_ratio_of_cps_is_two_variances_too_small():
    x, velocity, sigma, next_sigma = random_steps()
    step = NOISY["CPS"](x, velocity, sigma, next_sigma)
    old = NOISY["CPS"](x, velocity + 0.1 * x, sigma, next_sigma)
    next_x = next_state(old, torch.cos(7 * x), storage=torch.float64)
    published = unscaled_logp(next_x, step) - unscaled_logp(next_x, old)
    density = gaussian_logp(next_x, step) - gaussian_logp(next_x, old)
    assert_close(published, 2 * step.std.square() * density)


@pytest.mark.parametrize("ask", [gaussian_logp, unscaled_logp, gaussian_kl])
def test_a_step_without_noise_has_no_log_probability(ask):
    x, velocity, sigma, next_sigma = random_steps()
    step = ode(x, velocity, sigma, next_sigma)
    with pytest.raises(ValueError, match="dynamics=flow_sde"):
        ask(step, x) if ask is gaussian_kl else ask(x, step)
    next_sigma[3] = 0
    step = NOISY["CPS"](x, velocity, sigma, next_sigma)
    with pytest.raises(ValueError, match="do not train the last step"):
        ask(step, x) if ask is gaussian_kl else ask(x, step)


def test_broken_levels_are_not_taken_for_noise():
    x, velocity, sigma, next_sigma = random_steps()
    step = NOISY["Flow-SDE"](x, velocity, next_sigma, sigma)  # from data to noise
    with pytest.raises(ValueError, match="no log-probability"):
        gaussian_logp(x, step)
