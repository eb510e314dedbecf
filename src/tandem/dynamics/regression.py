"""Pictures regressed on: noised anew at levels of our own choice, whoever sampled them.

A velocity is compared with noise - x0 there. Rows with one key get the same levels and noise, and
so does whoever asks again: the old policy and the reference are judged at the very same points.

Levels are ranges of sigma, `low` to `high`. Flow-Factory writes fractions of the way to data: its
timestep_range (a, b) is low = 1 - b, high = 1 - a here. It also shifts that fraction, so its shift
of 3 moves levels toward data, and is 1 / 3 here, where a shift above 1 moves them toward noise.
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
    declare,
    fraction,
    positive,
    register_level_candidates,
)
from tandem.dynamics.path import interpolate, velocity_between

Levels = Callable[[Tensor, Tensor], Tensor]  # (u in (0, 1) [N, T], schedule [S + 1]) -> [N, T]
Candidates = Callable[[Tensor], Tensor]  # schedule [S + 1] -> the steps that may be drawn, [n]
Weighting = Callable[[Tensor, Tensor], Tensor]  # (sigma, energy) -> -log p, of one shape

ROUNDING = 1e-6  # a schedule is in float32
FLOOR = 1e-10  # an energy of 0 keeps a finite slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Noise levels at which velocities of finished pictures are compared, and their weights.

    Every epoch asks elsewhere under algorithm.objective=denoising. Under `any` all epochs ask at
    the same points: ratios compare log-probabilities with those that were found there before.
    """

    levels: Levels  # of the noise
    weighting: Weighting  # what a mean squared error says of minus the log-probability
    count: int = 1  # noise levels of a picture
    stratified: bool = False  # one in each of `count` equal parts, in random order
    shared: bool = True  # all samples of a group get the same levels and noise
    guidance_scale: float = 1.0  # of the velocity that is trained
    ref_guidance_scale: float = 1.0  # of the reference's

    def __post_init__(self) -> None:
        for name in ("count", "guidance_scale", "ref_guidance_scale"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"algorithm.timestep_sampling.{name} is {getattr(self, name)}; it must be at "
                    "least 1"
                )

    def sigma(self, keys: Tensor, schedule: Tensor) -> Tensor:
        """The noise levels of each row, [N, count]; schedule: sigma of the sampler, from 1 to 0."""
        u = rng.uniform(rng.key(keys, "sigma"), (self.count,))
        if self.stratified:
            part = rng.uniform(rng.key(keys, "order"), (self.count,)).argsort(-1)
            u = (part + u) / self.count
        return self.levels(u, schedule.to(u))

    def noised(self, x0: Tensor, keys: Tensor, schedule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x_sigma [N, count, ...], sigma [N, count] and the true velocity there [N, count, ...]."""
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
    low: Annotated[float, fraction] = 0.0,
    high: Annotated[float, fraction] = 1.0,
    shift: Annotated[float, positive] = 1.0,
) -> Tensor:
    """low + (high - low) u, then shifted. u is [N, T] in (0, 1), and so is what comes out."""
    return shifted(between(u, low=low, high=high), shift)


@declare(rising=(("low", "high"),))
def logit_normal(
    u: Tensor,
    schedule: Tensor,
    *,
    mean: float = 0.0,
    std: Annotated[float, positive] = 1.0,
    low: Annotated[float, fraction] = 0.0,
    high: Annotated[float, fraction] = 1.0,
    shift: Annotated[float, positive] = 1.0,
) -> Tensor:
    """sigmoid(mean + std z), shifted, then between low and high; a mean above 0 is toward noise.

    What Stable Diffusion 3 was trained on (arXiv:2403.03206). u is [N, T] in (0, 1), and so is what
    comes out.
    """
    raw = torch.sigmoid(mean + std * torch.special.ndtri(u))
    return between(shifted(raw, shift), low=low, high=high)


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """shift sigma / (1 + (shift - 1) sigma): above 1 toward noise, and by 1 / shift back again.

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
    start: Annotated[float, fraction] = 0.0,  # the part that is left out at the side of noise
    end: Annotated[
        float, fraction
    ] = 0.99,  # the part up to which they are taken; of 10 steps the first 9
) -> Tensor:
    """The steps from one part of the sampler's S on and below another, floor(S start ... S end).

    Shape: [steps]. Source: Flow-Factory's time_range.
    """
    steps = len(schedule) - 1
    first, last = (part_of(steps, part) for part in (start, end))
    return torch.arange(first, last, device=schedule.device)


def part_of(steps: int, part: float) -> int:
    """floor(part steps), as by hand: 0.29 of 100 is 29."""
    return math.floor(steps * part + ROUNDING)


@register_level_candidates("time", rising=(("low", "high"),))
def by_time(
    schedule: Tensor,
    *,
    low: Annotated[float, fraction] = 0.0,
    high: Annotated[float, fraction] = 1.0,
) -> Tensor:
    """The steps of the sampler that start at a level from low to high, both included.

    A shifted schedule has few steps near data: what is half of it by index is little by time.
    Shape: [steps]. Source: Flow-Factory.
    """
    start = schedule[:-1]
    return ((start >= low - ROUNDING) & (start <= high + ROUNDING)).nonzero()[:, 0]


def discrete(u: Tensor, schedule: Tensor, *, among: Candidates = by_index) -> Tensor:
    """Levels of the sampler: one from each of T equal parts of the candidates, noise first.

    u is [N, T], and so is what comes out.
    """
    return schedule[one_of_each_part(u, among(schedule))]


def discrete_with_init(u: Tensor, schedule: Tensor, *, among: Candidates = by_index) -> Tensor:
    """The first candidate, and T - 1 from parts of the others.

    u is [N, T], and so is what comes out.
    """
    candidates = among(schedule)
    first = one_of_each_part(u[:, :1], candidates[:1])
    rest = one_of_each_part(u[:, 1:], candidates[1:])
    return schedule[torch.cat([first, rest], 1)]


def discrete_without_init(u: Tensor, schedule: Tensor, *, among: Candidates = by_index) -> Tensor:
    """T from parts of the candidates, all but the first, which is pure noise.

    u is [N, T], and so is what comes out.
    """
    return schedule[one_of_each_part(u, among(schedule)[1:])]


def one_of_each_part(u: Tensor, candidates: Tensor) -> Tensor:
    """Candidate floor(u size) of each of T parts, whose sizes differ by one at most. [N, T]

    Each can be drawn, the last one too, and none twice; if there are fewer than T, each is drawn
    about equally often. Raises ValueError where there is no candidate.
    """
    parts, count = u.shape[1], len(candidates)
    if parts and not count:
        raise ValueError(
            "no step of the sampler is left to draw a noise level from; raise rollout.steps, or "
            "widen algorithm.timestep_sampling.levels.among"
        )
    edges = torch.arange(parts + 1, device=u.device) * count // max(parts, 1)
    place = edges[:-1] + (u * edges.diff()).long()
    return candidates[place]
