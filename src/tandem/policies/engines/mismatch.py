"""Train-inference mismatch: log-probabilities of the sampler against the training forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem import distributed
from tandem.types import Rollout, take

UNKNOWN, DIFFERENT, REUSED = -1, 0, 1
FEW = 16  # rows that are asked again

Again = Callable[[Rollout], Tensor]  # what training says of rows, [B, T]


def judge(rollout: Rollout, again: Again, *, same: float) -> int:
    """REUSED if no log-probability of a few rows differs by `same` nats, over all ranks."""
    gap = gaps(few(rollout), again)
    largest = distributed.largest(torch.cat([gap.flatten(), gap.new_zeros(1)]).max())
    return REUSED if largest < same else DIFFERENT


def mean_gap(rows: Rollout, again: Again) -> float:
    """Mean |difference| over the masked steps of the rows of all ranks, nats."""
    sums = torch.stack([gaps(rows, again).sum(), rows.mask.sum()]).double()
    total, count = distributed.total(sums).tolist()
    return total / max(count, 1)


def few(rollout: Rollout) -> Rollout:
    """Some rows that have a step."""
    return take(rollout, rollout.mask.any(1).nonzero()[:FEW, 0])


def gaps(rows: Rollout, again: Again) -> Tensor:
    """|difference| of every step, [B, T]; 0 outside the mask."""
    return torch.where(rows.mask, again(rows) - rows.behaviour_logp, 0).abs()
