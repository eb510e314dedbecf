"""Batches of an iteration: updates by whole groups, micro-batches by memory alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.experience import Budget, Experience, select_rows, unmask
from tandem.types import Rollout

FIRST = torch.zeros(1, dtype=torch.int64)  # the row that a rank without any takes part with


def split_groups(rollout: Rollout, num_minibatches: int, key: int) -> list[Tensor]:
    """Ids of the groups of each update: a keyed shuffle of whole groups, cut evenly.

    The groups are those that have a trained step on any rank, so every rank finds the same cut. If
    they are fewer than minibatches (a filter or a mask took the others) they are that many updates.
    Each is [G] int64.
    """
    group = distributed.gather(rollout.group)
    ids = group[distributed.gather(rollout.trained.any(1))].unique().cpu()
    if not len(ids):
        return []
    return list(ids[rng.permutation(key, len(ids))].tensor_split(min(num_minibatches, len(ids))))


def select_groups(experience: Experience, ids: Tensor) -> Experience:
    """The rows of these groups; if this rank has none of them, one row without a trained step.

    `ids`: [G] int64.
    """
    group = experience.rollout.group
    rows = torch.isin(group, ids.to(group.device)).nonzero()[:, 0]
    if len(rows):
        return select_rows(experience, rows)
    first = select_rows(experience, FIRST)
    return replace(first, rollout=unmask(first.rollout))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batch arithmetic of a run."""

    seed: int
    iterations: int
    prompts_per_step: int  # of all ranks together
    group_size: int
    num_minibatches: int
    epochs: int
    budget: Budget
    max_grad_norm: float

    @property
    def updates(self) -> int:
        """Optimiser steps per iteration."""
        return self.num_minibatches * self.epochs


def even_parts(
    minibatch: Experience,
    cost: Tensor,
    budget: Budget,
    *,
    zero_at_zero_advantage: bool,
    whole_groups: bool,
) -> list[Experience]:
    """The rows that count, cut to the budget; as many parts on every rank, idle ones at weight 0.

    cost: [B] steps that a forward pass reads of each row.
    """
    rows = counting_rows(
        minibatch, zero_at_zero_advantage=zero_at_zero_advantage, whole_groups=whole_groups
    )
    group = minibatch.rollout.group[rows]
    cut = budget.cut(cost[rows], group if whole_groups else None)
    count = max(1, int(distributed.all_max(torch.tensor(len(cut)))))
    # A graph that several parts shared would be gone after the first backward.
    assert count == 1 or minibatch.record is None
    parts = [select_rows(minibatch, rows[part.to(rows.device)]) for part in cut]
    idle = parts[0] if parts else select_rows(minibatch, FIRST)
    idle = replace(idle, weights={name: 0 * weight for name, weight in idle.weights.items()})
    return parts + [idle] * (count - len(parts))


def counting_rows(
    experience: Experience, *, zero_at_zero_advantage: bool, whole_groups: bool
) -> Tensor:
    """Indices of the rows of which some step counts in some term of the update.

    `zero_at_zero_advantage`: those without advantage do not; `whole_groups`: with one row counts
    its group. Shape: [N] int64.
    """
    weights = experience.weights.values()
    counts = torch.stack([weight.ne(0).any(1) for weight in weights]).any(0)
    if zero_at_zero_advantage:
        counts &= experience.advantages.ne(0).any(1)
    if whole_groups:
        group = experience.rollout.group
        counts = torch.isin(group, group[counts])
    return counts.nonzero()[:, 0]
