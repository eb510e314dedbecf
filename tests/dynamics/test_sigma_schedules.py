"""Sigma schedules: the reference rows, and the numbers of diffusers itself."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.dynamics.schedules import (
    diffusers_default,
    exponential_dynamic_shift,
    linear_dynamic_shift,
    linear_shift,
)

SCHEDULES = {
    "linear_shift": linear_shift,
    "diffusers_default": diffusers_default,
    "exponential": exponential_dynamic_shift,
    "linear": linear_dynamic_shift,
}


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (linear_shift, "flow_factory"),
        (linear_shift, "dancegrpo"),
        (diffusers_default, "flow_grpo_sd3_diffusers"),
    ],
)
def test_ten_steps_shifted_by_three_are_the_reference_ones(flow, schedule, name):
    want = flow(f"schedule.N10_shift3/{name}")
    assert_close(schedule(10, 0).double(), want, atol=1e-7, rtol=0)


@pytest.mark.parametrize("steps", [1, 2, 7, 10, 28, 50])
@pytest.mark.parametrize("shift", [1.0, 1.7, 3.0, 3.1, 8.0])
def test_diffusers_default_is_bit_for_bit_what_diffusers_takes(steps, shift):
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    assert torch.equal(diffusers_default(steps, 0, shift=shift), scheduler.sigmas)


def make_schedule(steps):
    return torch.linspace(1, 1 / steps, steps, dtype=torch.float64).tolist()


@pytest.mark.parametrize("steps", [1, 4, 10, 28])
def test_linear_shift_is_diffusers_with_sigmas_given(steps):
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=make_schedule(steps))
    assert_close(linear_shift(steps, 0), scheduler.sigmas, atol=2e-7, rtol=0)


@pytest.mark.parametrize("tokens", [256, 1024, 4096])
@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_dynamic_shifts_are_those_of_diffusers(kind, tokens):
    diffusers = pytest.importorskip("diffusers")
    flux = pytest.importorskip("diffusers.pipelines.flux.pipeline_flux")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, time_shift_type=kind
    )
    scheduler.set_timesteps(sigmas=make_schedule(10), mu=flux.calculate_shift(tokens))
    assert_close(SCHEDULES[kind](10, tokens), scheduler.sigmas, atol=2e-7, rtol=0)


QWEN_IMAGE = {"max_tokens": 8192, "max_shift": 0.9, "terminal": 0.02}


@pytest.mark.parametrize("tokens", [4, 1024, 4096])
@pytest.mark.parametrize("steps", [2, 10, 50])
def test_a_terminal_level_is_that_of_diffusers(steps, tokens):
    diffusers = pytest.importorskip("diffusers")
    flux = pytest.importorskip("diffusers.pipelines.flux.pipeline_flux")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, shift_terminal=0.02
    )
    mu = flux.calculate_shift(tokens, max_seq_len=8192, max_shift=0.9)
    scheduler.set_timesteps(sigmas=make_schedule(steps), mu=mu)
    levels = exponential_dynamic_shift(steps, tokens, **QWEN_IMAGE)
    assert_close(levels, scheduler.sigmas, atol=2e-7, rtol=0)
    assert levels[0] == 1 and levels[-1] == 0  # exactly: `flow_sde` tests for 1


@pytest.mark.parametrize(("steps", "terminal"), [(1, 0.02), (10, 0.0), (10, 1.0)])
def test_a_terminal_level_needs_room(steps, terminal):
    with pytest.raises(ValueError, match=f"terminal={terminal:g} with {steps} steps; it must"):
        exponential_dynamic_shift(steps, 256, terminal=terminal)


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
@pytest.mark.parametrize("name", SCHEDULES)
def test_levels_fall_from_one_to_zero(name, steps):
    sigmas = SCHEDULES[name](steps, 1024)
    assert sigmas.shape == (steps + 1,) and sigmas.dtype == torch.float32
    assert sigmas[0] == 1 and sigmas[-1] == 0  # exactly: `flow_sde` tests for 1
    assert (sigmas.diff() < 0).all()


@pytest.mark.parametrize("schedule", [linear_shift, diffusers_default])
def test_a_shift_of_one_leaves_levels_alone_and_a_larger_one_adds_noise(schedule):
    even = schedule(10, 0, shift=1.0)
    assert_close(even[:10].diff(), (even[9] - even[0]).expand(9) / 9)
    assert (schedule(10, 0, shift=2.0)[1:-1] > even[1:-1]).all()
    assert (schedule(10, 0, shift=0.5)[1:-1] < even[1:-1]).all()


def test_larger_pictures_take_more_noise():
    small, large = (exponential_dynamic_shift(10, tokens) for tokens in (256, 4096))
    assert (large[1:-1] > small[1:-1]).all()


@pytest.mark.parametrize("schedule", [linear_shift, partial(diffusers_default, train_steps=100)])
@pytest.mark.parametrize(("steps", "shift"), [(0, 3.0), (10, 0.0), (10, -1.0)])
def test_a_schedule_that_cannot_be_is_refused(schedule, steps, shift):
    with pytest.raises(ValueError, match="at least 1 step and a shift above 0"):
        schedule(steps, 0, shift=shift)
