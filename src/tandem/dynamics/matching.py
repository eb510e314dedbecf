"""Queries of distribution matching: noise levels at which a generator's predictions are noised.

A level is drawn for a state of the generator's path, whose step leads from sigma to next_sigma. The
noise is fresh, or continues the noise of the path at a level: then a query is a state that a longer
path of the generator could have reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import fraction, positive, register_query
from tandem.dynamics.path import interpolate
from tandem.dynamics.regression import between, shifted

# (u in (0, 1), sigma, next_sigma) -> sigma of the query, and the level whose noise continues: [N]
Query = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MOST = math.log(20.0)  # bound of the absolute log of an importance weight


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPoints:
    """N noised predictions."""

    x: Tensor  # [N, ...]
    sigma: Tensor  # [N]
    target: Tensor  # [N, ...] the velocity of the picture there
    importance: Tensor  # [N]


# Any level, with fresh noise (DMD2)
@register_query(rising=(("low", "high"),))
def anywhere(
    u: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    low: Annotated[float, fraction] = 0.02,  # lowest noise level, 0 = data
    high: Annotated[float, fraction] = 0.98,  # highest noise level, 1 = noise
) -> tuple[Tensor, Tensor]:
    """low + (high - low) u, with fresh noise.

    Shape: [N] each. Source: DMD2, arXiv:2405.14867.
    """
    return between(u, low=low, high=high), torch.zeros_like(u)


# A level between the ends of the step, with the noise of the path (TDM)
@register_query
def trajectory(
    u: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    # Shift of the levels; above 1: toward noise, below 1: toward data.
    shift: Annotated[float, positive] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Uniform between next_sigma and sigma before the shift, with the noise left at next_sigma.

    Shape: [N] each. Source: TDM, arXiv:2503.06674.
    """
    return span(u, next_sigma, sigma, shift=shift), next_sigma


# A level between the end of the step and 1, with the noise of the path (TDM, TDM-R1)
@register_query
def reverse(
    u: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    # Shift of the levels; above 1: toward noise, below 1: toward data.
    shift: Annotated[float, positive] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Uniform between next_sigma and 1 before the shift, with the noise left at next_sigma.

    Shape: [N] each. Source: TDM, arXiv:2503.06674.
    """
    return span(u, next_sigma, torch.ones_like(sigma), shift=shift), next_sigma


def span(u: Tensor, low: Tensor, high: Tensor, *, shift: float) -> Tensor:
    """S(a + u (b - a)), where S is the shift, S(a) = low and S(b) = high: [N]"""
    first, last = (shifted(end, 1 / shift) for end in (low, high))
    return shifted(first + u * (last - first), shift)


def continue_noise(
    own: Tensor, fresh: Tensor, sigma: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """Noise at level sigma that continues the noise at level `left`, and its importance weight
    relative to fresh noise.

    own: the noise that the generator implies; own and fresh [N, D], levels [N], left < sigma; at
    left = 0 the result is fresh. -> [N, D] of variance 1, [N]. Source: TDM's reverse conditioning.
    """
    kept = (1 - sigma) / (1 - left) * left
    added = (sigma.square() - kept.square()).clamp(min=0).sqrt()
    mixed = (kept[:, None] * own + added[:, None] * fresh) / sigma[:, None]
    log_weight = 0.5 * (fresh.square().mean(-1) - mixed.square().mean(-1))
    return mixed, log_weight.clamp(-MOST, MOST).exp()


def noise_again(
    query: Query,
    x: Tensor,
    x0: Tensor,
    ends: tuple[Tensor, Tensor],
    keys: Tensor,
) -> QueryPoints:
    """The predictions x0 at states x, with new noise.

    x, x0: [N, ...]; ends: sigma before and after the step from x, [N]; keys: [N] int64.
    """
    before, after = ends
    sigma, left = query(rng.uniform(rng.key(keys, "sigma")).to(x.dtype), before, after)
    fresh = rng.normal(rng.key(keys, "noise"), x.shape[1:]).to(x.dtype)
    level = before.view(-1, *(1,) * (x.ndim - 1))
    own = (x - (1 - level) * x0) / level
    mixed, importance = continue_noise(own.flatten(1), fresh.flatten(1), sigma, left)
    noise = mixed.view_as(x)
    return QueryPoints(
        x=interpolate(x0, noise, sigma), sigma=sigma, target=noise - x0, importance=importance
    )
