"""Whether what a sampler says of its own steps is what the training forward says of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem import ranks
from tandem.types import Rollout, take

UNKNOWN, DIFFERENT, REUSED = -1, 0, 1
FEW = 16  # rows that are asked again


def judge(rollout: Rollout, again: Callable[[Rollout], Tensor], *, same: float) -> int:
    """REUSED if no log-probability of a few rows differs by `same` nats, over all ranks.

    `again`: what training says of rows, [B, T].
    """
    some = take(rollout, rollout.mask.any(1).nonzero()[:FEW, 0])
    gap = torch.where(some.mask, again(some) - some.behaviour_logp, 0).abs()
    largest = ranks.largest(torch.cat([gap.flatten(), gap.new_zeros(1)]).max())
    return REUSED if largest < same else DIFFERENT
