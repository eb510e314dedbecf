"""Losses that treat good and bad rows independently, without pairs: [B, T]."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, positive, register_policy_loss
from tandem.losses.pairs import log_ratio, of_row, sides
from tandem.metrics import Metric, Sum
from tandem.types import CoupledBatch


def mismatched_kl(batch: CoupledBatch) -> Tensor:
    """The KL to the reference: [B, T] nats of a whole sample, the same for all.

    max(0, mean log p - log p_ref of mismatched rows): prompts with answers to other prompts.
    """
    rows = batch.baseline & batch.mask.any(1)
    total = torch.where(rows, log_ratio(batch)[:, 0], 0).sum()
    return (total / rows.sum().clamp(min=1)).clamp(min=0).expand_as(batch.mask)


def kto_metrics(batch: CoupledBatch, statistics: Tensor, *, beta: float) -> dict[str, Metric]:
    """Means over good and over bad rows, and the KL subtracted from rewards.

    `statistics`: [B, T] nats, the KL.
    """
    values = {
        "reward": beta * log_ratio(batch)[:, 0],
        "logp": of_row(batch.logp, batch)[:, 0],
    }
    rows = dict(zip(("chosen", "rejected"), sides(batch), strict=True))
    means = {
        f"preference/{side}_{name}": Sum(torch.where(where, x, 0).sum(), where.sum())
        for side, where in rows.items()
        for name, x in values.items()
    }
    either = rows["chosen"] | rows["rejected"]
    kl = Sum(torch.where(either, statistics[:, 0], 0).sum(), either.sum())
    return means | {"preference/mismatched_kl": kl}


def by_reference(batch: CoupledBatch, *, beta: float) -> Tensor:
    """beta (log p - log p_ref) of each row: [B, 1]"""
    return beta * log_ratio(batch)


# Good and bad rows independently, relative to the KL of mismatched rows (KTO)
@register_policy_loss(
    reads={"ref_logp", "baseline"},
    per="row",
    units={"beta": "preference", "desirable": "none", "undesirable": "none"},
    zero_at_zero_advantage=True,
    reward=by_reference,
    batch_statistics=mismatched_kl,
    metrics=kto_metrics,
)
def kto(
    batch: CoupledBatch,
    statistics: Tensor,
    *,
    # temperature: factor of the log ratio, per nat of a row.
    beta: Annotated[float, positive] = 0.1,
    # Weight of good rows; 1 and 1 is balanced, as pairs have as many good as bad rows.
    desirable: Annotated[float, at_least(0)] = 1.0,
    # Weight of bad rows; larger if a bad answer harms more than a good one helps.
    undesirable: Annotated[float, at_least(0)] = 1.0,
) -> Tensor:
    """1 - sigmoid(beta (log ratio - z)) for good rows, 1 - sigmoid(beta (z - log ratio)) for bad.

    z is the KL of mismatched rows. Good and bad are the signs of the advantage, weighted by
    `desirable` and `undesirable`. Rows come in pairs, as many good as bad, so the weights need not
    balance unequal numbers (arXiv:2402.01306). Shape: [B, T].
    """
    ahead = beta * (log_ratio(batch) - statistics)
    good, bad = desirable * (-ahead).sigmoid(), undesirable * ahead.sigmoid()
    value = torch.where(batch.advantages > 0, good, bad)
    return torch.where((batch.advantages != 0) & batch.mask, value, 0)
