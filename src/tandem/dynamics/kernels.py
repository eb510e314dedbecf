"""One denoising step: (x, velocity, sigma, next_sigma, *, numbers) -> mean and std of the next x.

Every kernel is linear in x and velocity, x' ~ N(a x + b velocity, std^2), with a, b and std from
the noise levels alone: [B] each, computed in float64. sigma falls, so dt = next_sigma - sigma < 0.
noise_level is the papers' eta; at 0 all kernels are the ODE.

At next_sigma = 0 both SDEs would still add noise to the finished sample, and `cps` none: the last
step follows the ODE (`steps.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, between, positive, register_dynamics
from tandem.types import align_level, widen


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The distribution of a step. Only `mean` carries a gradient."""

    mean: Tensor  # [B, ...]
    std: Tensor  # [B], the same for every latent dimension; 0: no noise
    velocity_gain: Tensor  # [B] d mean / d velocity, below 0


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Step]


@register_dynamics(noiseless=True)
def ode(x: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor) -> Step:
    """x + velocity dt: Euler's step, without noise.

    x and velocity are [B, ...], the levels [B]. Source: Euler's method, as in rectified flow
    (arXiv:2209.03003).
    """
    dt = next_sigma.double() - sigma.double()
    return linear_step(x, velocity, torch.ones_like(dt), dt, torch.zeros_like(dt))


@register_dynamics(of_sde=True)
def flow_sde(
    x: Tensor,
    velocity: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    # Strength of the noise, which sqrt(sigma / (1 - sigma)) multiplies.
    noise_level: Annotated[float, positive] = 0.7,
) -> Step:
    """The SDE with s = noise_level sqrt(sigma / (1 - sigma)) (Flow-GRPO, arXiv:2505.05470).

    At sigma = 1, the first step, 1 - sigma under the root uses the second level of the schedule,
    next_sigma. A schedule that starts slightly below 1 gets no such correction. x and velocity are
    [B, ...], the levels [B].
    """
    level = sigma.double()
    below_one = torch.where(level == 1, next_sigma.double(), level)
    return sde_step(x, velocity, sigma, next_sigma, noise_level * (level / (1 - below_one)).sqrt())


@register_dynamics(of_sde=True)
def dance_sde(
    x: Tensor,
    velocity: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    # Strength of the noise, which sigma^power multiplies.
    noise_level: Annotated[float, positive] = 0.3,
    # Exponent of sigma in the strength of the noise; 0: the same at all steps.
    power: Annotated[float, at_least(0)] = 0.0,
) -> Step:
    """The SDE with s = noise_level sigma^power.

    power=0: the same s at every level (DanceGRPO, arXiv:2505.07818). power=1, with the second level
    of the schedule as noise_level: Flow-GRPO's for video (train_wan2_1.py of its code). x and
    velocity are [B, ...], the levels [B].
    """
    return sde_step(x, velocity, sigma, next_sigma, noise_level * sigma.double() ** power)


@register_dynamics
def cps(
    x: Tensor,
    velocity: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    # Strength of the noise, up to 1: the noise is turned by noise_level x 90 degrees.
    noise_level: Annotated[float, between(0, 1, open_low=True)] = 0.8,
) -> Step:
    """(1 - sigma') x0 + sigma' (cos(e) noise + sin(e) fresh noise), e = noise_level pi / 2.

    The velocity implies x0 and noise, so the noise of x' has exactly the std sigma' of training
    (coefficients-preserving sampling, arXiv:2509.05952). x and velocity are [B, ...], the levels
    [B].
    """
    level, after = sigma.double(), next_sigma.double()
    # cos and sin of the angle: sqrt(sigma'^2 - std^2) is NaN if rounding makes it negative.
    kept = after * math.cos(noise_level * math.pi / 2)
    fresh = after * math.sin(noise_level * math.pi / 2)
    return linear_step(
        x, velocity, (1 - after) + kept, (1 - level) * kept - level * (1 - after), fresh
    )


def next_state(step: Step, noise: Tensor, *, storage: torch.dtype = torch.float32) -> Tensor:
    """mean + std noise, [B, ...], rounded to the storage dtype and without gradient.

    It is rounded before use: its log-probability and the next step must be those of the stored
    value, or the first ratio in training is not 1.
    """
    drawn = step.mean + align_level(step.std, step.mean) * widen(noise)
    return drawn.detach().to(storage).to(drawn.dtype)


def sde_step(x: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor, s: Tensor) -> Step:
    """x + (velocity - s^2 / 2 score) dt + s sqrt(-dt) noise: the ODE's marginals, as dt -> 0.

    x and velocity are [B, ...], the levels and s [B].
    """
    level = sigma.double()
    dt = next_sigma.double() - level
    pull = s.square() / (2 * level)  # -s^2 / 2 score = pull (x + (1 - sigma) velocity)
    return linear_step(x, velocity, 1 + pull * dt, (1 + pull * (1 - level)) * dt, s * (-dt).sqrt())


def linear_step(x: Tensor, velocity: Tensor, state_gain: Tensor, gain: Tensor, std: Tensor) -> Step:
    """A step with mean state_gain x + gain velocity: x and velocity [B, ...], the others [B]."""
    x, velocity = widen(x), widen(velocity)
    state_gain, gain, std = (number.to(x.dtype) for number in (state_gain, gain, std))
    mean = align_level(state_gain, x) * x + align_level(gain, x) * velocity
    return Step(mean=mean, std=std, velocity_gain=gain)
