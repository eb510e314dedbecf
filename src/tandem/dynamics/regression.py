"""Pictures regressed on: noised anew at levels of our own choice, whoever sampled them.

A velocity is compared with noise - x0 there. Rows with one key get the same levels and noise, and
so does whoever asks again: the old policy and the reference are judged at the very same points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import draws
from tandem.dynamics.path import interpolate, velocity_between

Levels = Callable[[Tensor, Tensor], Tensor]  # (u in (0, 1) [N, T], schedule [S + 1]) -> [N, T]
Weighting = Callable[[Tensor, Tensor], Tensor]  # (sigma, energy) -> -log p, of one shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Where a velocity field is asked about finished pictures, and what its errors stand for."""

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
                    f"algorithm.regression.{name} is {getattr(self, name)}; it must be at least 1"
                )

    def sigma(self, keys: Tensor, schedule: Tensor) -> Tensor:
        """The noise levels of each row, [N, count]; schedule: sigma of the sampler, from 1 to 0."""
        u = draws.uniform(draws.key(keys, "sigma"), (self.count,))
        if self.stratified:
            part = draws.uniform(draws.key(keys, "order"), (self.count,)).argsort(-1)
            u = (part + u) / self.count
        return self.levels(u, schedule.to(u))

    def noised(self, x0: Tensor, keys: Tensor, schedule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x_sigma [N, count, ...], sigma [N, count] and the true velocity there [N, count, ...]."""
        sigma = self.sigma(keys, schedule).to(x0.dtype)
        noise = draws.normal(draws.key(keys, "noise"), (self.count, *x0.shape[1:]))
        x0 = x0[:, None].expand_as(noise)
        return interpolate(x0, noise, sigma), sigma, velocity_between(x0, noise)


def energy(error: Tensor) -> Tensor:
    """The mean of error^2 over latent dimensions: [..., D] -> [...]."""
    return error.square().mean(-1)


def uniform(
    u: Tensor,
    schedule: Tensor,
    *,
    low: float = 0.0,
    high: float = 1.0,
) -> Tensor:
    """low + (high - low) u."""
    return low + (high - low) * u


def logit_normal(u: Tensor, schedule: Tensor, *, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """sigmoid(mean + std z): what Stable Diffusion 3 was trained on (arXiv:2403.03206)."""
    return torch.sigmoid(mean + std * torch.special.ndtri(u))


def plain(sigma: Tensor, energy: Tensor) -> Tensor:
    """The mean squared error itself."""
    return energy
