"""Advantages that compare every reward by itself: (Scores, Rollout, *, numbers) -> [B, T].

They read the parts of a score, so they do not see what a shaping of the total took away.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tandem.advantages.group import centre, on_steps, unbiased_std
from tandem.types import Rollout, Scores


def by_part(
    scores: Scores,
    rollout: Rollout,
    *,
    weights: Mapping[str, float] | None = None,
    eps: float = 1e-4,
) -> Tensor:
    """sum_k w_k (R_k - mean) / (std + eps), each reward k within the group.

    A sample that reward k did not score leaves k's statistics and gets nothing from k.
    """
    return on_steps(_summed(scores, rollout, weights, eps), rollout.mask)


def gdpo(
    scores: Scores,
    rollout: Rollout,
    *,
    weights: Mapping[str, float] | None = None,
    eps: float = 1e-4,
) -> Tensor:
    """`by_part` over its standard deviation among all scored samples, + eps.

    Its mean among them is 0 already, and so stays exactly 0 what ties in every part.
    Source: GDPO, arXiv:2601.05242; over samples as in TRL, not over steps as in verl.
    """
    summed = _summed(scores, rollout, weights, eps)
    freedom = (scores.scored.sum() - 1).clamp(min=1)
    std = (summed.square().sum() / freedom).sqrt()
    return on_steps(summed / (std + eps), rollout.mask)


def _summed(
    scores: Scores, rollout: Rollout, weights: Mapping[str, float] | None, eps: float
) -> Tensor:
    weights = dict.fromkeys(scores.parts, 1.0) if weights is None else weights
    summed = torch.zeros_like(scores.total)
    for name, weight in weights.items():
        part = only(scores, name)
        std = unbiased_std(part, rollout.group)
        summed = summed + weight * centre(part, rollout.group) / (std + eps)
    return summed


def only(scores: Scores, name: str) -> Scores:
    """The scores as if `name` were the only reward."""
    if name not in scores.parts:
        raise ValueError(f"no reward is called {name!r}; there are {', '.join(scores.parts)}")
    part = scores.parts[name]
    known = scores.scored & part.isfinite()
    return Scores(total=torch.where(known, part, 0), parts={name: part}, scored=known)
