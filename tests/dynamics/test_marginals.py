"""The spread at the end of a rollout under the exact velocity equals that of the data.

x0 ~ N(0, variance) has a linear velocity, so every x is Gaussian and its variance follows from the
gains of the steps alone. variance=0 is a point mass. Steps go from sigma = 0.95, where x_sigma
starts with the correct spread, to 0.05.
"""

from itertools import pairwise

import pytest
import torch
from flows import FALLING, KERNELS, NOISY, exact_velocity, spread

from tandem.dynamics.kernels import next_state
from tandem.rng import key, normal


def ratio(kernel, variance, steps):
    """The final standard deviation over the true one."""
    sigmas = torch.linspace(0.95, 0.05, steps + 1, dtype=torch.float64)
    so_far = spread(sigmas[0], variance)
    one = torch.ones(1, 1, dtype=torch.float64)
    for sigma, after in pairwise(sigmas):
        step = kernel(one, exact_velocity(one, sigma, variance), sigma[None], after[None])
        so_far = step.mean.item() ** 2 * so_far + step.std.item() ** 2
    return (so_far / spread(sigmas[-1], variance)).sqrt().item()


@pytest.mark.parametrize("steps", [1, 5, 50])
def test_cps_keeps_the_spread_of_a_point_at_any_number_of_steps(steps):
    assert ratio(NOISY["CPS"], 0.0, steps) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("variance", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ODE", "Flow-SDE", "Dance-SDE", "falling"])
def test_the_ode_and_the_sdes_keep_every_spread_as_steps_grow(name, variance):
    kernel = (KERNELS | {"falling": FALLING})[name]
    few, many, most = (abs(ratio(kernel, variance, n) - 1) for n in (100, 400, 1600))
    assert most < 0.005
    assert most <= many + 1e-12 and many <= few + 1e-12


@pytest.mark.parametrize(
    ("name", "variance", "steps", "want"),
    [
        ("Flow-SDE", 0.0, 5, 3.25),
        ("Flow-SDE", 0.0, 50, 1.09),
        ("Flow-SDE", 0.0, 400, 1.01),
        ("Dance-SDE", 0.0, 5, 2.57),
        ("Dance-SDE", 0.0, 400, 1.02),
        ("CPS", 1.0, 5, 0.67),
        ("CPS", 1.0, 100, 0.80),
        ("Flow-SDE", 1.0, 5, 1.09),
        ("Flow-SDE", 1.0, 400, 1.00),
    ],
)
def test_figures_are_those_of_the_reference(name, variance, steps, want):
    assert ratio(KERNELS[name], variance, steps) == pytest.approx(want, abs=0.005)


def test_cps_narrows_what_varies_and_more_steps_do_not_help():
    narrowed = [ratio(NOISY["CPS"], 1.0, steps) for steps in (400, 1600)]
    assert narrowed == pytest.approx([0.805, 0.808], abs=0.001)
    # At 5 steps a third of that is Euler's error, which the ODE makes as well.
    assert ratio(KERNELS["ODE"], 1.0, 5) == pytest.approx(0.80, abs=0.005)


@pytest.mark.parametrize("name", NOISY)
def test_drawn_rollouts_have_the_spread_that_the_gains_say(name):
    rows, steps = 20_000, 8
    sigmas = torch.linspace(0.95, 0.05, steps + 1)
    x = normal(key(0, name, 0), (rows, 2)) * spread(sigmas[0], 1.0).sqrt()
    for number, (sigma, after) in enumerate(pairwise(sigmas)):
        velocity = exact_velocity(x, sigma, 1.0)
        step = NOISY[name](x, velocity, sigma.expand(rows), after.expand(rows))
        x = next_state(step, normal(key(0, name, number + 1), (rows, 2)))
    drawn = (x.var() / spread(sigmas[-1], 1.0)).sqrt().item()
    # The std of 40,000 numbers is known to 0.35 %.
    assert drawn == pytest.approx(ratio(NOISY[name], 1.0, steps), rel=0.015)
