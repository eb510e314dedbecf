"""One step of each kernel: reference values, its algebra, and the special cases at both ends."""

import math

import pytest
import torch
from flows import (
    FALLING,
    KERNELS,
    NOISY,
    PRECISION,
    PUBLISHED_LOGP,
    SDES,
    levels,
    noise_from_velocity,
    random_steps,
)
from torch.testing import assert_close

from tandem.dynamics.kernels import cps, dance_sde, flow_sde, next_state, ode
from tandem.dynamics.path import x0_from_velocity

EACH = pytest.mark.parametrize("name", KERNELS)
EACH_NOISY = pytest.mark.parametrize("name", NOISY)
DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)
FROM_NOISE = 1.0


def read_step(flow, case, dtype, start="dyn.ODE"):
    """x, velocity, sigma, next_sigma of a worked example; some share their x and velocity."""
    x, velocity = flow(f"{start}/x", dtype), flow(f"{start}/v", dtype)
    return x, velocity, *(levels(flow(f"{case}/{end}"), x) for end in ("sigma", "sigma_next"))


@DTYPES
@EACH
def test_a_step_is_the_reference_one(flow, name, dtype):
    close = {"atol": PRECISION[dtype], "rtol": 0, "check_dtype": False}
    case = f"dyn.{name}"
    inputs = read_step(flow, case, dtype, start=case)
    step = KERNELS[name](*inputs)
    assert_close(step.mean, flow(f"{case}/mean"), **close)
    assert_close(step.std, flow(f"{case}/S").expand(2), **close)
    assert_close(step.velocity_gain, flow(f"dyn.dmu_dv.{name}/value").expand(2), **close)
    reached = next_state(step, flow(f"{case}/z", dtype), storage=dtype)
    assert_close(reached, flow(f"{case}/x_next"), **close)
    if name in NOISY:
        logp = PUBLISHED_LOGP[name](reached, step)
        assert_close(logp, flow(f"{case}/log_prob"), **close)
        assert NOISY[name].keywords["noise_level"] == flow(f"{case}/eta").item()
    if name in SDES:
        s = step.std / (inputs[2] - inputs[3]).sqrt()
        assert_close(s, flow(f"{case}/s").expand(2), **close)


@DTYPES
def test_the_first_step_is_the_reference_one(flow, dtype):
    close = {"atol": PRECISION[dtype], "rtol": 0, "check_dtype": False}
    case = "dyn.Flow-SDE.first_step"
    inputs = read_step(flow, case, dtype)
    assert flow(f"{case}/sigma_max") == flow(f"{case}/sigma_next")  # the second level
    step = flow_sde(*inputs, noise_level=flow(f"{case}/eta").item())
    reached = next_state(step, flow("dyn.ODE/z", dtype), storage=dtype)
    assert_close(step.mean, flow(f"{case}/mean"), **close)
    assert_close(step.std, flow(f"{case}/S").expand(2), **close)
    assert_close(step.std / math.sqrt(0.1), flow(f"{case}/s").expand(2), **close)
    assert_close(reached, flow(f"{case}/x_next"), **close)
    logp = PUBLISHED_LOGP["Flow-SDE"](reached, step)
    assert_close(logp, flow(f"{case}/log_prob"), **close)


@DTYPES
def test_the_last_step_of_cps_is_the_sample_itself(flow, dtype):
    case = "dyn.CPS.last_step"
    inputs = read_step(flow, case, dtype)
    step = cps(*inputs)
    want = flow(f"{case}/mean")
    assert_close(step.mean, want, atol=PRECISION[dtype], rtol=0, check_dtype=False)
    assert_close(step.std, flow(f"{case}/S", dtype).expand(2), atol=0, rtol=0)
    assert_close(step.mean, x0_from_velocity(*inputs[:3]))


@pytest.mark.parametrize("name", SDES)
def test_an_sde_would_leave_noise_in_the_sample(name):
    x, velocity, sigma, _ = random_steps()
    assert (SDES[name](x, velocity, sigma, torch.zeros_like(sigma)).std > 0.03).all()


def test_noise_of_power_1_falls_with_the_level():
    """s = 0.9 * 0.5 = 0.45 and dt = -0.04: the mean of 1 with velocity 2 is
    1 + (2 + 0.45^2 / (2 * 0.5) (1 + 0.5 * 2)) dt."""
    x, velocity = torch.ones(1, 1).double(), torch.full((1, 1), 2.0).double()
    step = FALLING(x, velocity, levels(0.5, x), levels(0.46, x))
    assert_close(step.std, levels(0.45 * 0.2, x))
    assert_close(step.mean, torch.full_like(x, 1 - (2 + 0.405) * 0.04))


@pytest.mark.parametrize("kernel", [flow_sde, dance_sde, cps])
def test_without_noise_every_kernel_is_the_ode(kernel):
    inputs = random_steps()
    inputs[2][0] = FROM_NOISE
    inputs[3][1] = 0
    step, want = kernel(*inputs, noise_level=0.0), ode(*inputs)
    assert_close(step.mean, want.mean, rtol=0, atol=1e-14)
    assert_close(step.velocity_gain, want.velocity_gain, rtol=0, atol=1e-15)
    assert (step.std == 0).all()


@pytest.mark.parametrize("sde", [*SDES.values(), FALLING], ids=[*SDES, "falling"])
def test_an_sde_pulls_against_the_score(sde):
    inputs = x, velocity, sigma, next_sigma = random_steps()
    step, dt = sde(*inputs), (next_sigma - sigma)[:, None, None]
    s_squared = (step.std.square() / (sigma - next_sigma))[:, None, None]
    score = -noise_from_velocity(x, velocity, sigma) / sigma[:, None, None]
    assert_close(step.mean, x + (velocity - s_squared / 2 * score) * dt)


def test_cps_keeps_the_amount_of_noise():
    inputs = *_, sigma, next_sigma = random_steps()
    x, velocity = inputs[:2]
    step = cps(*inputs)
    left = step.mean - (1 - next_sigma)[:, None, None] * x0_from_velocity(x, velocity, sigma)
    kept = left / noise_from_velocity(x, velocity, sigma)
    total = (kept.square() + step.std.square()[:, None, None]).sqrt()
    assert_close(total, next_sigma[:, None, None].expand_as(total))


def test_full_noise_of_cps_is_still_a_number():
    x, velocity, sigma, next_sigma = random_steps(dtype=torch.float32)
    step = cps(x, velocity, sigma, next_sigma, noise_level=1.0)
    x0 = x0_from_velocity(x, velocity, sigma)
    assert_close(step.mean, (1 - next_sigma)[:, None, None] * x0, atol=1e-6, rtol=1e-5)
    assert_close(step.std, next_sigma)


@EACH
def test_the_gain_is_the_derivative_and_never_changes_sign(name):
    inputs = random_steps(rows=400, size=(2,), seed=3)
    inputs[2][0] = FROM_NOISE
    inputs[1].requires_grad_()
    step = KERNELS[name](*inputs)
    (gradient,) = torch.autograd.grad(step.mean.sum(), inputs[1])
    assert_close(gradient, step.velocity_gain[:, None].expand(400, 2))
    assert (step.velocity_gain < 0).all()
    assert not step.std.requires_grad and not step.velocity_gain.requires_grad


@EACH
def test_means_have_the_gradients_of_finite_differences(name):
    x, velocity, sigma, next_sigma = random_steps(rows=3, size=(2,))
    x.requires_grad_(), velocity.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *state: KERNELS[name](*state, sigma, next_sigma).mean, (x, velocity)
    )


@EACH
def test_rows_at_different_levels_do_not_meet(name):
    inputs = random_steps(dtype=torch.float32)
    together = KERNELS[name](*inputs)
    for row in range(len(inputs[0])):
        alone = KERNELS[name](*(value[row : row + 1] for value in inputs))
        assert_close(alone.mean, together.mean[row : row + 1], rtol=0, atol=0)
        assert_close(alone.std, together.std[row : row + 1], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@EACH
def test_means_are_float32_whatever_a_model_speaks(name, dtype):
    x, velocity, sigma, next_sigma = random_steps(dtype=torch.float32)
    x, velocity = x.to(dtype), velocity.to(dtype)
    want = KERNELS[name](x.float(), velocity.float(), sigma, next_sigma)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = KERNELS[name](x, velocity, sigma, next_sigma)
    assert_close(got.mean, want.mean, rtol=0, atol=0)
    assert_close(got.std, want.std, rtol=0, atol=0)


@EACH_NOISY
def test_float32_steps_are_those_of_float64_rounded_once(name):
    inputs = random_steps(rows=500, size=(4,), seed=5, dtype=torch.float32)
    inputs[2][:50] = FROM_NOISE
    single, exact = NOISY[name](*inputs), NOISY[name](*(value.double() for value in inputs))
    assert torch.equal(single.std, exact.std.float())
    assert torch.equal(single.velocity_gain, exact.velocity_gain.float())
    size = exact.mean.abs().clamp(min=1)
    assert ((single.mean - exact.mean).abs() / size).max() < 5e-7


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_is_what_its_storage_gives_back(storage):
    x, velocity, sigma, next_sigma = random_steps(dtype=torch.float32)
    step = flow_sde(x, velocity.requires_grad_(), sigma, next_sigma)
    state = next_state(step, torch.ones_like(x), storage=storage)
    assert_close(state.to(storage).to(torch.float32), state, rtol=0, atol=0)
    assert not state.requires_grad
    exact = step.mean + step.std[:, None, None]
    assert_close(state, exact.detach(), atol=1e-6, rtol=torch.finfo(storage).eps)


def test_time_steps_in_the_place_of_levels_give_no_number():
    x, velocity, *_ = random_steps()
    step = flow_sde(x, velocity, levels(600, x), levels(400, x))
    assert step.std.isnan().all()
