"""The preference of a whole group: one margin of all its samples, as DPO has it of two."""

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

    The same on all steps, and below 0 where the policy ranks the group as the advantages do.
    """
    rows = batch.mask.any(1, keepdim=True)
    return -beta * group_mean(liked(batch), batch.group, rows).expand_as(batch.mask)


def liked(batch: CoupledBatch) -> Tensor:
    """A (log p - log p_ref) of each row, the sum over its steps: [B, 1]"""
    return of_row(batch.advantages * (batch.logp - batch.ref_logp), batch)


def ranking_metrics(batch: CoupledBatch, statistics: Tensor) -> dict[str, Metric]:
    """S and its sigmoid, and how often a group is ranked as the advantages do, over steps.

    `statistics`: [B, T], S of each row's group.
    """
    values = {"score": statistics, "weight": statistics.sigmoid(), "accuracy": statistics < 0}
    return {f"preference/group_{name}": masked_mean(x, batch.mask) for name, x in values.items()}


# -log sigmoid of what all samples of a group say together, by their advantages (DPO of groups)
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

    Of advantages +1 and -1 and groups of two it is DPO of half the beta; of velocity errors, at one
    noise level, it has beta times the gradient of DGPO (arXiv:2510.08425) without a clip. The value
    is that of the group on every row with an advantage, the gradient the row's own part of it.
    Shape: [B, T].
    """
    own = -beta * statistics.sigmoid() * liked(batch)
    value = softplus(statistics) + own - own.detach()
    return torch.where((batch.advantages != 0).any(1, keepdim=True) & batch.mask, value, 0)
