"""The straight path from data to noise, and conversions between predictions on it.

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


def noise_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """x + (1 - sigma) velocity: [B, ...], sigma [B]."""
    return widen(x) + (1 - align_level(sigma, x)) * widen(velocity)


def score_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """grad log p_sigma(x) = -noise / sigma; raises at sigma = 0, where it is undefined.

    Shape: [B, ...], sigma [B].
    """
    return -noise_from_velocity(x, velocity, sigma) / _level_except(0, sigma, x)


def velocity_from_x0(x: Tensor, x0: Tensor, sigma: Tensor) -> Tensor:
    """(x - x0) / sigma; raises at sigma = 0, where x is x0 whatever the velocity.

    Shape: [B, ...], sigma [B].
    """
    return (widen(x) - widen(x0)) / _level_except(0, sigma, x)


def velocity_from_noise(x: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """(noise - x) / (1 - sigma); raises at sigma = 1, where x is the noise: [B, ...], sigma [B]."""
    return (widen(noise) - widen(x)) / (1 - _level_except(1, sigma, x))


def velocity_from_score(x: Tensor, score: Tensor, sigma: Tensor) -> Tensor:
    """-(sigma score + x) / (1 - sigma); raises at sigma = 1, where the score is -x.

    Shape: [B, ...], sigma [B].
    """
    return velocity_from_noise(x, -align_level(sigma, x) * widen(score), sigma)


def _level_except(end: int, sigma: Tensor, x: Tensor) -> Tensor:
    if (sigma == end).any():
        raise ValueError(f"a row has sigma = {end}, where this conversion divides by 0")
    return align_level(sigma, x)
