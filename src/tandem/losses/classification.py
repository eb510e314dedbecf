"""A policy loss that classifies right and wrong samples of a group, [B, T]."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_policy_loss
from tandem.losses.pairs import sides
from tandem.losses.sequence import mean_log_ratio
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch


def right_and_wrong(batch: CoupledBatch) -> tuple[Tensor, Tensor]:
    """[B, B] bool twice: the right and the wrong rows of each row's group; empty for a group that
    lacks either. Right rows have positive advantages, wrong ones negative."""
    same = batch.group[:, None] == batch.group
    right, wrong = (same & side for side in sides(batch))
    mixed = (right.any(1) & wrong.any(1))[:, None]
    return right & mixed, wrong & mixed


def log_one_plus(logits: Tensor, chosen: Tensor) -> Tensor:
    """log(1 + sum of e^logit over the chosen), for every row. [B], [B, B] bool -> [B]"""
    known = torch.where(chosen, logits, -torch.inf)
    return torch.cat([known.new_zeros(len(known), 1), known], 1).logsumexp(1)


def real_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """The fraction of compared samples on the wrong side."""
    right, wrong = (side.any(0) for side in right_and_wrong(batch))
    moved = mean_log_ratio(batch)[:, 0]
    lost = (right & (moved < 0)) | (wrong & (moved > 0))
    return {"actor/misplaced": masked_mean(lost, right | wrong)}


# Classifies right and wrong samples of a group by their ratios (REAL)
@register_policy_loss(
    reads={"old_logp"},
    per="sample",
    units={"tau": "clip"},
    zero_at_zero_advantage=True,
    whole_groups=True,
    metrics=real_metrics,
)
def real(
    batch: CoupledBatch,
    *,
    # Temperature that a sample's mean log ratio is divided by, nats.
    tau: Annotated[float, positive] = 0.5,
) -> Tensor:
    """log(1 + sum over wrong of e^(s / tau)) + log(1 + sum over right of e^(-s / tau)), s the mean
    log ratio of a sample's steps, over its group; 0 in a group of right or of wrong ones alone.

    Only the sign of advantages is read, as a label. A sample's gradient is at most 1 / tau however
    rare its class is, and fades once it is classified correctly. All rows of a group have the value
    of the group, so `sequence_mean` is the mean over samples. Shape: [B, T]. Source: REAL,
    arXiv:2602.05630.
    """
    right, wrong = right_and_wrong(batch)
    logits = mean_log_ratio(batch)[:, 0] / tau
    value = log_one_plus(logits, wrong) + log_one_plus(-logits, right)
    labelled = (right | wrong).any(0)[:, None] & batch.mask
    return torch.where(labelled, value[:, None], 0)
