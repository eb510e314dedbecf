"""Policy losses for samples that are far from the policy, [B, T]."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_policy_loss
from tandem.losses.policy import ratio_of
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch


def taper(batch: CoupledBatch) -> Tensor:
    """min(1, p / q) for bad samples as a whole, q of the sampler; 1 for good ones. [B, T]"""
    log_ratio = torch.where(batch.mask, batch.logp - batch.behaviour_logp, 0).detach()
    of_bad = log_ratio.sum(1, keepdim=True).clamp(max=0).exp()
    return torch.where(batch.advantages > 0, 1, of_bad)


def topr_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """The mean weight of the steps of bad samples."""
    return {"actor/taper": masked_mean(taper(batch), batch.mask & (batch.advantages < 0))}


# -A log p; bad samples are tapered as they become unlikely (TOPR)
@register_policy_loss(
    reads={"behaviour_logp"}, per="sample", zero_at_zero_advantage=True, metrics=topr_metrics
)
def topr(batch: CoupledBatch) -> Tensor:
    """-w A log p, w = 1 for good samples and min(1, p / q) for bad ones, p / q of the whole sample,
    detached.

    Good samples are learnt however unlikely they are, bad ones are pushed down only while they are
    likely, so samples of any age can be used. Made for scores of 1 and -1 without a baseline
    (algorithm/advantage=raw_reward). Shape: [B, T]. Source: TOPR, arXiv:2503.14286.
    """
    return -taper(batch) * batch.advantages * batch.logp


def find_kept(batch: CoupledBatch, *, spread: float) -> Tensor:
    """[B, T] bool, False for steps dropped to bound the second moment of the others.

    Only steps that moved in the direction of their advantage count.
    """
    moved = batch.logp - batch.old_logp
    harmful = batch.trained & (batch.advantages * moved > 0)
    square, order = torch.where(harmful, moved.square(), torch.inf).flatten().sort()
    count = int(harmful.sum())
    # The mean of the smallest n never falls with n.
    mean = square[:count].cumsum(0) / torch.arange(1, count + 1, device=square.device)
    dropped = order[int((mean <= spread**2).sum()) : count]
    return torch.ones_like(batch.mask).flatten().index_fill_(0, dropped, False).view_as(batch.mask)


def m2po_metrics(batch: CoupledBatch, statistics: Tensor) -> dict[str, Metric]:
    """The fraction of dropped steps. `statistics`: [B, T] bool, the kept steps."""
    return {"actor/m2_dropped": masked_mean(~statistics, batch.mask)}


# -r A; the steps with the largest log ratios are dropped up to a second-moment bound (M2PO)
@register_policy_loss(
    reads={"old_logp"},
    units={"spread": "clip"},
    zero_at_zero_advantage=True,
    batch_statistics=find_kept,
    metrics=m2po_metrics,
)
def m2po(
    batch: CoupledBatch,
    statistics: Tensor,
    *,
    # Largest root mean square of the log ratios that are kept, nats: 0.2 for tau = 0.04.
    spread: Annotated[float, positive] = 0.2,
) -> Tensor:
    """-r A without a clip, 0 on the steps whose log ratio is largest, dropped until the root mean
    square of the others is at most `spread`, over the update.

    Only steps that moved in the direction of their advantage count and are dropped. Shape: [B, T].
    Source: M2PO, arXiv:2510.01161.
    """
    return torch.where(statistics, -ratio_of(batch.logp, batch.old_logp) * batch.advantages, 0)
