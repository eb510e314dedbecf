"""Regression on finished pictures: velocity errors at newly drawn noise levels.

The target velocity is noise - x0. Levels and noise are a function of a row's key, so the policy,
the old policy and the reference are evaluated at the same points.

Levels are ranges of sigma, `low` to `high`. Flow-Factory writes fractions of the way to data: its
timestep_range (a, b) is low = 1 - b, high = 1 - a here. It also shifts that fraction, so its shift
of 3 moves levels toward data and is 1 / 3 here, where a shift above 1 moves them toward noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import (
    at_least,
    declare,
    fraction,
    positive,
    register_level_candidates,
)
from tandem.dynamics.path import interpolate, velocity_between

Levels = Callable[[Tensor, Tensor], Tensor]  # (u in (0, 1) [N, T], schedule [S + 1]) -> [N, T]
Candidates = Callable[[Tensor], Tensor]  # schedule [S + 1] -> the steps that may be drawn, [n]
Weighting = Callable[[Tensor, Tensor], Tensor]  # (sigma, energy) -> -log p, in the same shape

ROUNDING = 1e-6  # tolerance for a schedule in float32
FLOOR = 1e-10  # keeps the gradient finite at an energy of 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Noise levels at which velocities of finished pictures are compared, and their weights.

    With algorithm.objective=denoising each epoch draws new points. With `any` all epochs use the
    same points, because ratios compare log-probabilities at equal points.
    """

    levels: Levels  # distribution of the noise levels
    weighting: Weighting  # function from a mean squared error to minus a log-probability
    count: Annotated[int, at_least(1)] = 1  # noise levels per image
    stratified: bool = False  # true: one level in each of `count` equal parts, in random order
    shared: bool = True  # true: all samples of a group get the same levels and noise
    guidance_scale: Annotated[float, at_least(1)] = 1.0  # guidance of the trained velocity
    ref_guidance_scale: Annotated[float, at_least(1)] = 1.0  # guidance of the reference's velocity

    def sigma(self, keys: Tensor, schedule: Tensor) -> Tensor:
        """The noise levels of each row, [N, count]; schedule: sigma of the sampler, from 1 to 0."""
        u = rng.uniform(rng.key(keys, "sigma"), (self.count,))
        if self.stratified:
            part = rng.uniform(rng.key(keys, "order"), (self.count,)).argsort(-1)
            u = (part + u) / self.count
        return self.levels(u, schedule.to(u))

    def add_noise(
        self, x0: Tensor, keys: Tensor, schedule: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x_sigma [N, count, ...], sigma [N, count] and the target velocity [N, count, ...]."""
        sigma = self.sigma(keys, schedule).to(x0.dtype)
        noise = rng.normal(rng.key(keys, "noise"), (self.count, *x0.shape[1:]))
        x0 = x0[:, None].expand_as(noise)
        return interpolate(x0, noise, sigma), sigma, velocity_between(x0, noise)


def energy(error: Tensor) -> Tensor:
    """The mean of error^2 over latent dimensions: [..., D] -> [...]."""
    return error.square().mean(-1)


@declare(rising=(("low", "high"),))
def uniform(
    u: Tensor,
    schedule: Tensor,
    *,
    low: Annotated[float, fraction] = 0.0,  # lowest noise level, 0 = data
    high: Annotated[float, fraction] = 1.0,  # highest noise level, 1 = noise
    # Shift of the levels; above 1: toward noise, below 1: toward data.
    shift: Annotated[float, positive] = 1.0,
) -> Tensor:
    """low + (high - low) u, then shifted. u and the result are [N, T] in (0, 1)."""
    return shifted(between(u, low=low, high=high), shift)


@declare(rising=(("low", "high"),))
def logit_normal(
    u: Tensor,
    schedule: Tensor,
    *,
    mean: float = 0.0,  # mean of the normal variable; above 0: toward noise
    std: Annotated[float, positive] = 1.0,  # standard deviation of the normal variable
    low: Annotated[float, fraction] = 0.0,  # lowest noise level, 0 = data
    high: Annotated[float, fraction] = 1.0,  # highest noise level, 1 = noise
    # Shift of the levels; above 1: toward noise, below 1: toward data.
    shift: Annotated[float, positive] = 1.0,
) -> Tensor:
    """sigmoid(mean + std z), shifted, then between low and high; a mean above 0 is toward noise.

    The levels of Stable Diffusion 3's training (arXiv:2403.03206). u and the result are [N, T] in
    (0, 1).
    """
    raw = torch.sigmoid(mean + std * torch.special.ndtri(u))
    return between(shifted(raw, shift), low=low, high=high)


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """shift sigma / (1 + (shift - 1) sigma): above 1 toward noise; 1 / shift is the inverse.

    Shape: [N, T] -> [N, T].
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def between(x: Tensor, *, low: float, high: float) -> Tensor:
    """low + (high - low) x: [N, T] -> [N, T]. Raises ValueError unless 0 <= low < high <= 1."""
    if not 0 <= low < high <= 1:
        raise ValueError(f"noise levels need 0 <= low < high <= 1, but low={low} and high={high}")
    return low + (high - low) * x


# Steps by their number: a part of the sampler's steps (default)
@register_level_candidates("index", rising=(("start", "end"),))
def by_index(
    schedule: Tensor,
    *,
    # Share of the steps that are left out at the start, from noise.
    start: Annotated[float, fraction] = 0.0,
    # Share of the steps at which to stop; 0.99: the first 9 of 10.
    end: Annotated[float, fraction] = 0.99,
) -> Tensor:
    """The sampler's steps from floor(S start) to below floor(S end), of S.

    Shape: [steps]. Source: the code of DiffusionNFT and AWM.
    """
    steps = len(schedule) - 1
    first, last = (part_of(steps, part) for part in (start, end))
    return torch.arange(first, last, device=schedule.device)


def part_of(steps: int, part: float) -> int:
    """floor(part steps), with tolerance for float rounding: 0.29 of 100 is 29."""
    return math.floor(steps * part + ROUNDING)


@register_level_candidates("time", rising=(("low", "high"),))
def by_time(
    schedule: Tensor,
    *,
    low: Annotated[float, fraction] = 0.0,  # lowest noise level, 0 = data
    high: Annotated[float, fraction] = 1.0,  # highest noise level, 1 = noise
) -> Tensor:
    """The steps of the sampler that start at a level from low to high, inclusive.

    A shifted schedule has few steps near data: half of its steps cover little of that range.
    Shape: [steps]. Source: Flow-Factory's timestep_range.
    """
    start = schedule[:-1]
    return ((start >= low - ROUNDING) & (start <= high + ROUNDING)).nonzero()[:, 0]


def discrete(
    u: Tensor,
    schedule: Tensor,
    *,
    among: Candidates = by_index,  # steps of the sampler whose levels may be drawn
) -> Tensor:
    """Levels of the sampler: one from each of T equal parts of the candidates, noise first.

    u and the result are [N, T].
    """
    return schedule[one_of_each_part(u, among(schedule))]


def discrete_with_init(
    u: Tensor,
    schedule: Tensor,
    *,
    among: Candidates = by_index,  # steps of the sampler whose levels may be drawn
) -> Tensor:
    """The first candidate, and one from each of T - 1 parts of the others.

    u and the result are [N, T].
    """
    candidates = among(schedule)
    first = one_of_each_part(u[:, :1], candidates[:1])
    rest = one_of_each_part(u[:, 1:], candidates[1:])
    return schedule[torch.cat([first, rest], 1)]


def discrete_without_init(
    u: Tensor,
    schedule: Tensor,
    *,
    among: Candidates = by_index,  # steps of the sampler whose levels may be drawn
) -> Tensor:
    """One from each of T parts of the candidates without the first, which is pure noise.

    u and the result are [N, T].
    """
    return schedule[one_of_each_part(u, among(schedule)[1:])]


def one_of_each_part(u: Tensor, candidates: Tensor) -> Tensor:
    """Candidate floor(u size) of each of T parts, whose sizes differ by at most one. [N, T]

    Each candidate can be drawn, none twice; with fewer than T candidates, each is drawn about
    equally often. Raises ValueError if there is no candidate.
    """
    parts, count = u.shape[1], len(candidates)
    if parts and not count:
        raise ValueError(
            "no step of the sampler is left to draw from; raise rollout.steps, or widen "
            "algorithm.timestep_sampling.levels.among"
        )
    edges = torch.arange(parts + 1, device=u.device) * count // max(parts, 1)
    place = edges[:-1] + (u * edges.diff()).long()
    return candidates[place]
