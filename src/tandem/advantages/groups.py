"""Statistics of the rows of a group, level by level or step by step."""

from __future__ import annotations

import torch
from torch import Tensor


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum of x over each group, given back to every row. [B] or [B, N] -> the same."""
    x = x.float() if x.dtype == torch.bool else x
    ids, row = numbered(group)
    return x.new_zeros(len(ids), *x.shape[1:]).index_add_(0, row, x)[row]


def numbered(group: Tensor) -> tuple[Tensor, Tensor]:
    """The groups there are, and the place of each row's own among them: [G] and [B] int64."""
    # Rows mostly come group by group, in rising order: then there is nothing to sort.
    in_order = bool((group[1:] >= group[:-1]).all())
    unique = torch.unique_consecutive if in_order else torch.unique
    return unique(group, return_inverse=True)


def group_mean(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of x over the rows of each row's group. x and weight: [B, T], group: [B].

    Weights are 0 and 1, or at most 1 with a 1 in each group.
    """
    weight = weight.to(x)
    return group_sum(x * weight, group) / group_sum(weight, group).clamp(min=1)


def from_the_top(logits: Tensor, group: Tensor, mask: Tensor) -> Tensor:
    """exp of logits less the largest of their group: 1 there, and 0 outside the mask. [B, T]"""
    logits = logits.masked_fill(~mask, -torch.inf)
    ids, row = numbered(group)
    place = row[:, None].expand_as(logits)
    none = logits.new_full((len(ids), logits.shape[1]), -torch.inf)
    top = none.scatter_reduce(0, place, logits, "amax")[row]
    return torch.where(mask, logits - top, -torch.inf).exp()
