"""Advantages of samples that answer the same prompt: (Scores, Rollout, *, numbers) -> [B, T]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.types import Rollout, Scores

TIE = 1e-6  # scores of a group that differ by less are float noise: no signal


def given(scores: Scores, rollout: Rollout) -> Tensor:
    """The score itself: demonstrations bring 1."""
    return on_steps(scores.total, rollout.mask)


def group_relative(
    scores: Scores,
    rollout: Rollout,
    *,
    scale: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    eps: float = 1e-6,
) -> Tensor:
    """How much better a sample scored than its group: (R - mean) / (scale + eps).

    Exactly 0 in a group whose scores tie or of which a single sample was scored.
    Source: GRPO, arXiv:2402.03300; `scale=None` is Dr. GRPO, arXiv:2503.20783.
    """
    centred = centre(scores, rollout.group)
    if scale is not None:
        centred = centred / (scale(centred, rollout.group, scores.scored) + eps)
    return on_steps(centred, rollout.mask)


def leave_one_out(scores: Scores, rollout: Rollout) -> Tensor:
    """R_i minus the mean score of the *other* samples of its group (RLOO, arXiv:2402.14740)."""
    count = group_sum(scores.scored, rollout.group)
    return on_steps(centre(scores, rollout.group) * count / (count - 1).clamp(min=1), rollout.mask)


def unbiased_std(centred: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Sample standard deviation of each group's centred scores: [B]."""
    count = group_sum(scored, group)
    return (group_sum(centred.square(), group) / (count - 1).clamp(min=1)).sqrt()


def centre(scores: Scores, group: Tensor) -> Tensor:
    """R minus the group's mean: [B]. 0 where there is no score, and in a group that ties."""
    count = group_sum(scores.scored, group).clamp(min=1)
    mean = group_sum(torch.where(scores.scored, scores.total, 0), group) / count
    centred = torch.where(scores.scored, scores.total - mean, 0)
    return torch.where(unbiased_std(centred, group, scores.scored) < TIE, 0, centred)


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum of x over each group, given back to every row. [B] -> [B]."""
    x = x.float() if x.dtype == torch.bool else x
    ids, row = torch.unique(group, return_inverse=True)
    return x.new_zeros(len(ids)).index_add_(0, row, x)[row]


def on_steps(x: Tensor, mask: Tensor) -> Tensor:
    """One number per sample -> every trained step of it. [B], [B, T] -> [B, T]."""
    return x[:, None] * mask
