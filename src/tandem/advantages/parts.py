"""Advantages that compare every reward separately: (Scores, Rollout, *, numbers) -> [B, T].

They read the parts of a score, so shaping of the total has no effect on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import Scale, centre, divide, spread_over_steps, unbiased_std
from tandem.contracts import at_least, register_adv_estimator
from tandem.types import Rollout, Scores


# The sum of every reward's own group-relative advantage (GDPO without its last step)
@register_adv_estimator(compares="group", by_reward=True)
def by_part(
    scores: Scores,
    rollout: Rollout,
    *,
    weights: Mapping[str, float] | None = None,  # weight of each reward, by name; null: 1 for all
    scale: Scale = unbiased_std,  # spread of a group that each reward is divided by
    eps: Annotated[float, at_least(0)] = 1e-4,  # added to the spread
) -> Tensor:
    """sum_k w_k (R_k - mean) / (scale + eps), each reward k within the group.

    A sample without reward k is excluded from k's statistics and gets nothing from k. Source: GDPO
    without its last step, arXiv:2601.05242. Shape: [B, T].
    """
    of_sample = sum_parts(scores, rollout.group, weights, scale=scale, eps=eps)
    return spread_over_steps(of_sample, rollout.mask)


# Every reward compared separately, then the sum normalised over samples (GDPO)
@register_adv_estimator(compares="group", by_reward=True)
def gdpo(
    scores: Scores,
    rollout: Rollout,
    *,
    weights: Mapping[str, float] | None = None,  # weight of each reward, by name; null: 1 for all
    # Spread of each reward in its group, then of the sum over all samples.
    scale: Scale = unbiased_std,
    eps: Annotated[float, at_least(0)] = 1e-4,  # added to each spread
) -> Tensor:
    """`by_part` over its standard deviation among all scored samples, + eps.

    Their mean is 0 already, so groups that tie in every part stay exactly 0. `scale` is per group
    for the parts, and over all samples for their sum. Source: GDPO, arXiv:2601.05242; over samples
    as in TRL, not over steps as in verl. Shape: [B, T].
    """
    of_sample = sum_parts(scores, rollout.group, weights, scale=scale, eps=eps)
    std = scale(replace(scores, total=of_sample), torch.zeros_like(rollout.group))
    return spread_over_steps(divide(of_sample, std + eps), rollout.mask)


def sum_parts(
    scores: Scores,
    group: Tensor,
    weights: Mapping[str, float] | None,
    *,
    scale: Scale,
    eps: float,
) -> Tensor:
    """[B]"""
    weights = dict.fromkeys(scores.parts, 1.0) if weights is None else weights
    total = torch.zeros_like(scores.total)
    for name, weight in weights.items():
        part = select_part(scores, name)
        total = total + weight * divide(centre(part, group), scale(part, group) + eps)
    return total


def select_part(scores: Scores, name: str) -> Scores:
    """The scores as if `name` were the only reward.

    Raises ValueError for a name that is no reward.
    """
    if name not in scores.parts:
        raise ValueError(f"no reward is called {name!r}; there are {', '.join(scores.parts)}")
    part = scores.parts[name]
    known = scores.scored & part.isfinite()
    return Scores(total=torch.where(known, part, 0), parts={name: part}, scored=known)
