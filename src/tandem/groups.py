"""What the rows of a group say together, level by level or step by step."""

from __future__ import annotations

import torch
from torch import Tensor


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum of x over each group, given back to every row. [B] or [B, N] -> the same."""
    x = x.float() if x.dtype == torch.bool else x
    ids, row = torch.unique(group, return_inverse=True)
    return x.new_zeros(len(ids), *x.shape[1:]).index_add_(0, row, x)[row]


def group_mean(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of x over the rows of each row's group. x and weight: [B, T], group: [B].

    Weights are 0 and 1, or at most 1 with a 1 in each group.
    """
    weight = weight.to(x)
    return group_sum(x * weight, group) / group_sum(weight, group).clamp(min=1)


def from_the_top(logits: Tensor, group: Tensor, mask: Tensor) -> Tensor:
    """exp of logits less the largest of their group: 1 there, and 0 outside the mask. [B, T]"""
    logits = logits.masked_fill(~mask, -torch.inf)
    ids, row = group.unique(return_inverse=True)
    place = row[:, None].expand_as(logits)
    none = logits.new_full((len(ids), logits.shape[1]), -torch.inf)
    top = none.scatter_reduce(0, place, logits, "amax")[row]
    return torch.where(mask, logits - top, -torch.inf).exp()
