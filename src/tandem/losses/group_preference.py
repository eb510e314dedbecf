"""A preference loss of a whole group: one margin over all samples, as DPO has over two."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tandem.advantages.group import group_mean
from tandem.contracts import register_policy_loss
from tandem.losses.pairs import of_row
from tandem.losses.preference import Temperature
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch


def disagreement(batch: CoupledBatch, *, beta: float) -> Tensor:
    """S of each row's group, -beta times the mean over its rows of A (log p - log p_ref): [B, T]

    The same on all steps; below 0 if the policy ranks the group as the advantages do.
    """
    rows = batch.mask.any(1, keepdim=True)
    return -beta * group_mean(weighted_log_ratio(batch), batch.group, rows).expand_as(batch.mask)


def weighted_log_ratio(batch: CoupledBatch) -> Tensor:
    """A (log p - log p_ref) of each row in nats, summed over its steps: [B, 1]"""
    return of_row(batch.advantages * (batch.logp - batch.ref_logp), batch)


def ranking_metrics(batch: CoupledBatch, statistics: Tensor) -> dict[str, Metric]:
    """S, its sigmoid, and the share of groups ranked as by the advantages, over steps.

    `statistics`: [B, T], S of each row's group.
    """
    values = {"score": statistics, "weight": statistics.sigmoid(), "accuracy": statistics < 0}
    return {f"preference/group_{name}": masked_mean(x, batch.mask) for name, x in values.items()}


# -log sigmoid of the advantage-weighted log ratios of a group (DPO of groups)
@register_policy_loss(
    reads={"ref_logp"},
    per="row",
    units={"beta": "preference"},
    zero_at_zero_advantage=True,
    batch_statistics=disagreement,
    metrics=ranking_metrics,
)
def group_preference(batch: CoupledBatch, statistics: Tensor, *, beta: Temperature = 0.2) -> Tensor:
    """softplus(S) = -log sigmoid(-S), S of the row's group: a preference among all its samples.

    beta: factor of the log ratios in S, per nat of a row. With advantages +1 and -1 and groups of
    two it is DPO with half the beta; on velocity errors, at one noise level, it has beta times the
    gradient of DGPO (arXiv:2510.08425) without a clip. Every row with an advantage has the value of
    the group, and its own part of the gradient.
    Shape: [B, T].
    """
    own = -beta * statistics.sigmoid() * weighted_log_ratio(batch)
    value = softplus(statistics) + own - own.detach()
    return torch.where((batch.advantages != 0).any(1, keepdim=True) & batch.mask, value, 0)
