"""Queries: where the pictures that a generator expects are noised again, for others to judge.

A level is drawn for a state of the generator's path, which leads from sigma to next_sigma. Noise
may be fresh, or go on from what the path itself leaves at a level: then a query is a state that a
longer path of the generator could have come by.
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

# (u in (0, 1), sigma, next_sigma) -> sigma of the query, and the level whose noise goes on: [N]
Query = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MOST = math.log(20.0)  # of the log of an importance weight, either way


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPoints:
    """Expected pictures with noise on them, N of them."""

    x: Tensor  # [N, ...]
    sigma: Tensor  # [N]
    target: Tensor  # [N, ...] the velocity of the picture there
    importance: Tensor  # [N]


# At any level, by fresh noise (DMD2)
@register_query(rising=(("low", "high"),))
def anywhere(
    u: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    low: Annotated[float, fraction] = 0.02,
    high: Annotated[float, fraction] = 0.98,
) -> tuple[Tensor, Tensor]:
    """low + (high - low) u, by noise that is all fresh.

    Shape: [N] each. Source: DMD2, arXiv:2405.14867.
    """
    return between(u, low=low, high=high), torch.zeros_like(u)


# Between the ends of the step, by the noise of the path (TDM)
@register_query
def trajectory(
    u: Tensor, sigma: Tensor, next_sigma: Tensor, *, shift: Annotated[float, positive] = 1.0
) -> tuple[Tensor, Tensor]:
    """Uniform between next_sigma and sigma before the shift, by the noise left at next_sigma.

    Shape: [N] each. Source: TDM, arXiv:2503.06674.
    """
    return span(u, next_sigma, sigma, shift=shift), next_sigma


# Between the end of the step and all noise, by the noise of the path (TDM, TDM-R1)
@register_query
def reverse(
    u: Tensor, sigma: Tensor, next_sigma: Tensor, *, shift: Annotated[float, positive] = 1.0
) -> tuple[Tensor, Tensor]:
    """Uniform between next_sigma and 1 before the shift, by the noise left at next_sigma.

    Shape: [N] each. Source: TDM, arXiv:2503.06674.
    """
    return span(u, next_sigma, torch.ones_like(sigma), shift=shift), next_sigma


def span(u: Tensor, low: Tensor, high: Tensor, *, shift: float) -> Tensor:
    """S(a + u (b - a)), S the shift and a, b what it makes low and high of: [N]"""
    first, last = (shifted(end, 1 / shift) for end in (low, high))
    return shifted(first + u * (last - first), shift)


def continue_noise(
    own: Tensor, fresh: Tensor, sigma: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """Noise of level sigma that goes on from the one at the level `left`, and its importance weight
    against noise that is all fresh.

    own: the noise that the generator implies; own and fresh [N, D], levels [N], left < sigma; at
    left = 0 it is the fresh one. -> [N, D] of variance 1, [N]. Source: TDM's reverse conditioning.
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
    """The pictures x0 that are expected of states x, noised anew.

    x, x0: [N, ...]; ends: sigma before and after the step that begins there, [N]; keys: [N] int64.
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
