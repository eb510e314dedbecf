"""The straight path from data to noise, and the data that a prediction on it means.

    x_sigma = (1 - sigma) x0 + sigma noise        velocity = noise - x0

sigma is in [0, 1], 1 = noise; its axes are the first axes of the latents ([B] of [B, ...]), so each
row has its own. Everything is float32 or wider, whatever the dtype of a model.
"""

from __future__ import annotations

from torch import Tensor

from tandem.types import align_level, widen


def interpolate(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """x_sigma. (1 - sigma) x0 + sigma noise: [B, ...], sigma [B]."""
    level = align_level(sigma, x0)
    return (1 - level) * widen(x0) + level * widen(noise)


def velocity_between(x0: Tensor, noise: Tensor) -> Tensor:
    """noise - x0: what a flow model is trained to predict at every sigma: [B, ...]."""
    return widen(noise) - widen(x0)


def x0_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """x - sigma velocity: [B, ...], sigma [B]."""
    return widen(x) - align_level(sigma, x) * widen(velocity)
