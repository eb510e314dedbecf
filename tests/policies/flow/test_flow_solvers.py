"""Second-order solvers: more accurate for the same number of calls."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_flow import sample_rows, small
from torch.testing import assert_close

from tandem import rng
from tandem.dynamics.kernels import ode
from tandem.dynamics.regression import Regression, discrete
from tandem.dynamics.schedules import (
    diffusers_default,
    exponential_dynamic_shift,
    linear_shift,
)
from tandem.dynamics.weighting import plain
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.solvers import dpm_solver, heun, solve, unipc

SPREAD = 0.3  # std of the toy's data
START = rng.normal(1, (200, 1)).clamp(-3, 3)
SOLVERS = {"dpm_solver": dpm_solver, "unipc": unipc, "heun": heun}
EACH = pytest.mark.parametrize("name", SOLVERS)


class Toy:
    """The exact velocity of data N(0, SPREAD^2); the ODE maps noise z to SPREAD z."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, sigma):
        self.calls += 1
        sigma = sigma[:, None]
        variance = (1 - sigma) ** 2 * SPREAD**2 + sigma**2
        return x * (sigma - (1 - sigma) * SPREAD**2) / variance


def euler(steps):
    toy, x = Toy(), START
    for sigma, after in zip(*(linear_shift(steps, 0)[i:] for i in (0, 1)), strict=False):
        x = ode(x, toy(x, sigma.expand(200)), sigma.expand(200), after.expand(200)).mean
    return (x - SPREAD * START).abs().max().item()


@EACH
def test_it_beats_euler_at_the_same_number_of_calls(name):
    toy = Toy()
    error = (
        (solve(toy, START, SOLVERS[name], linear_shift(12, 0)) - SPREAD * START).abs().max().item()
    )
    assert toy.calls == (23 if name == "heun" else 12)
    # The other two end with a first-order step, which causes most of their error.
    assert error < (0.5 if name == "heun" else 0.9) * euler(toy.calls)


@EACH
def test_a_policy_samples_by_it_and_gets_nearly_the_fine_ode(name):
    policy = small(sampling={"kernel": ode})
    fine = sample_rows(policy, 1, sampling=replace(policy.sampling, steps=200)).sample.x0
    quick = replace(policy.sampling, steps=10, solver=SOLVERS[name])
    rollout = sample_rows(policy, 1, sampling=quick)
    coarse = sample_rows(policy, 1, sampling=replace(policy.sampling, steps=10)).sample.x0
    assert rollout.behaviour_logp is None and rollout.sample.trajectory is None
    assert (rollout.sample.x0 - fine).norm() < (coarse - fine).norm()


def test_it_has_no_log_probability():
    with pytest.raises(ValueError, match="dynamics=ode"):
        FlowSampling(steps=4, solver=partial(dpm_solver, shift=1.0))


@EACH
def test_its_noise_levels_are_those_that_a_picture_is_noised_to(name):
    """The level at which each step starts; the replaced schedule has others."""
    solver = partial(SOLVERS[name], shift=1.7)
    policy = small(
        steps=6,
        sampling={"kernel": ode, "solver": solver},
        timesteps=Regression(levels=discrete, weighting=plain, count=5),
        objective="denoising",
    )
    seen = []
    solve(lambda x, sigma: seen.append(sigma[0].item()) or x, START, solver, linear_shift(6, 0))
    levels = policy.schedule()
    assert levels[:-1].tolist() == list(dict.fromkeys(seen)) and levels[-1] == 0
    asked = policy.errors(sample_rows(policy, 1), frozenset())["sigma"]
    assert torch.isin(asked, levels[:-1]).all()
    assert not torch.isin(asked, linear_shift(6, 0)[1:]).any()


@EACH
def test_it_goes_through_the_levels_of_the_schedule_unless_it_has_a_shift(name):
    """Including schedules that are shifted twice or stretched."""
    stretched = partial(exponential_dynamic_shift, terminal=0.02)
    for schedule in (partial(linear_shift, shift=7.3), diffusers_default, stretched):
        sampling = FlowSampling(steps=6, kernel=ode, schedule=schedule)
        sampling = replace(sampling, solver=partial(SOLVERS[name], shift=None))
        assert_close(sampling.levels(1024), schedule(6, 1024), atol=2e-6, rtol=0)
        own = replace(sampling, solver=partial(SOLVERS[name], shift=20.0)).levels(1024)
        assert (own - schedule(6, 1024)).abs().max() > 0.05
