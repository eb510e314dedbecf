"""Losses of a critic, [B, T], and its explained variance."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, declare
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch

ALIKE = 1e-12  # a smaller variance of returns is float noise


def squared_errors(batch: CoupledBatch, clip: float) -> tuple[Tensor, Tensor]:
    """(V - G)^2, and the same with V held within `clip` of the value before the update. [B, T]"""
    held = batch.old_values + (batch.values - batch.old_values).clamp(-clip, clip)
    return (batch.values - batch.returns).square(), (held - batch.returns).square()


def value_clipping(batch: CoupledBatch, *, clip: float | None) -> dict[str, Metric]:
    """Fraction of steps whose gradient the clip removed."""
    if clip is None:
        return {}
    free, held = squared_errors(batch, clip)
    outside = (batch.values - batch.old_values).abs() > clip  # inside, the two differ by rounding
    return {"critic/value_clip_frac": masked_mean(outside & (held > free), batch.mask)}


@declare(reads={"values", "old_values", "returns"}, metrics=value_clipping)
def value_loss(
    batch: CoupledBatch,
    *,
    # Largest change of a value from the one before the update; null: no clip.
    clip: Annotated[float, at_least(0)] | None = 0.2,
) -> Tensor:
    """max((V - G)^2, (V_clipped - G)^2) / 2, in squared units of the reward.

    V_clipped stays within `clip` of the value before the update; None leaves it out.
    Source: PPO's code; its paper (arXiv:1707.06347) has no clip here. Shape: [B, T].
    """
    if clip is None:
        return (batch.values - batch.returns).square() / 2
    return torch.maximum(*squared_errors(batch, clip)) / 2


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor) -> float:
    """1 - Var(G - V) / Var(G) over the steps of all rows: 1 is perfect, 0 is a constant.

    NaN if all returns are equal: there is nothing to explain. All are [B, T].
    """
    target, error = returns[mask].double(), (returns - values)[mask].double()
    if len(target) < 2 or (spread := target.var()) < ALIKE:
        return math.nan
    return (1 - error.var() / spread).item()
