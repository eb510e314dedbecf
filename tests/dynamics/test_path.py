"""The path, and the data and the noise that follow from one prediction."""

import pytest
import torch
from flows import PRECISION, levels, noise_from_velocity, random_steps
from torch.testing import assert_close

from tandem.dynamics import likelihood, path

DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)


def same(got, want, dtype):
    assert_close(got, want, atol=PRECISION[dtype], rtol=0, check_dtype=False)


@DTYPES
def test_states_and_targets_are_the_reference_ones(flow, dtype):
    x0, noise, sigma = (flow(f"fixture/{name}", dtype) for name in ("x0", "eps", "sigma"))
    same(path.interpolate(x0, noise, sigma), flow("fixture/x_t"), dtype)
    same(path.velocity_between(x0, noise), flow("fixture/v_target"), dtype)
    error = flow("fixture/v", dtype) - path.velocity_between(x0, noise)
    same(likelihood.mean_square(error, sigma), flow("sft/per_sample"), dtype)


@DTYPES
def test_recovered_ends_are_the_reference_ones(flow, dtype):
    x, velocity = flow("tdm/x", dtype), flow("tdm/v", dtype)
    sigma = levels(flow("tdm/sigma_upper"), x)
    x0 = path.x0_from_velocity(x, velocity, sigma)
    same(x0, flow("tdm/x0_student"), dtype)
    same(noise_from_velocity(x, velocity, sigma), flow("tdm/implied_noise"), dtype)
    query = path.interpolate(x0, flow("tdm/mixed", dtype), levels(flow("tdm/sigma_t"), x))
    same(query, flow("tdm/x_query"), dtype)


@DTYPES
def test_a_sample_in_one_step_is_the_reference_one(flow, dtype):
    noise = flow("fixture/eps", dtype)
    sample = path.x0_from_velocity(noise, flow("fixture/v", dtype), levels(1.0, noise))
    same(sample, flow("dmd2/x0_gen"), dtype)
    half = levels(0.5, noise)
    x = path.interpolate(sample, flow("tdm/fresh", dtype), half)
    for predicted, name in (("v_ref", "x0_real"), ("v_old", "x0_fake")):
        velocity = flow(f"fixture/{predicted}", dtype)
        same(path.x0_from_velocity(x, velocity, half), flow(f"dmd2/{name}"), dtype)


def test_data_and_noise_of_a_prediction_lead_back_to_it():
    x, velocity, sigma, _ = random_steps()
    x0 = path.x0_from_velocity(x, velocity, sigma)
    noise = noise_from_velocity(x, velocity, sigma)
    assert_close(path.interpolate(x0, noise, sigma), x)
    assert_close(path.velocity_between(x0, noise), velocity)


def test_an_error_of_x0_is_minus_sigma_times_that_of_the_velocity():
    x0, velocity, sigma, _ = random_steps()
    noise = torch.randn(x0.shape, dtype=x0.dtype, generator=torch.Generator().manual_seed(1))
    x = path.interpolate(x0, noise, sigma)
    error = velocity - path.velocity_between(x0, noise)
    got = path.x0_from_velocity(x, velocity, sigma) - x0
    assert_close(got, -path.align_level(sigma, x0) * error)


def test_predictions_exist_at_both_ends():
    x, velocity, sigma, _ = random_steps(rows=2)
    sigma[0], sigma[1] = 0, 1
    x0 = path.x0_from_velocity(x, velocity, sigma)
    assert_close(x0, torch.stack([x[0], x[1] - velocity[1]]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_arithmetic_is_float32_whatever_a_model_speaks(dtype):
    x, velocity, sigma, _ = random_steps(dtype=torch.float32)
    x, velocity = x.to(dtype), velocity.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = path.x0_from_velocity(x, velocity, sigma)
        mean = likelihood.mean_square(x, sigma)
    assert_close(mean, x.float().square().mean((1, 2)), rtol=1e-6, atol=0)
    assert_close(got, x.float() - sigma[:, None, None] * velocity.float(), rtol=0, atol=0)
    assert path.x0_from_velocity(x, velocity, sigma.double()).dtype == torch.float32


def test_steps_have_levels_of_their_own():
    x, velocity, sigma, _ = random_steps(rows=6)
    got = path.x0_from_velocity(x.view(2, 3, 3, 4), velocity.view(2, 3, 3, 4), sigma.view(2, 3))
    assert_close(got.view(6, 3, 4), path.x0_from_velocity(x, velocity, sigma), rtol=0, atol=0)
    assert_close(
        likelihood.mean_square(x.view(2, 3, 3, 4), sigma.view(2, 3)).view(6), (x**2).mean((1, 2))
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (12, 3, 4)])
def test_one_level_for_all_rows_is_refused(shape):
    x, velocity, *_ = random_steps()
    with pytest.raises(ValueError, match="its own noise level"):
        path.x0_from_velocity(x, velocity, torch.full(shape, 0.5))
