"""Preference advantages, +1 and -1 within a group: (Scores, Rollout) -> [B, T]."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.advantages.group import TIE, spread_over_steps
from tandem.contracts import register_adv_estimator
from tandem.types import Rollout, Scores


# +1 for the best and -1 for the worst sample of a group, for losses of pairs
@register_adv_estimator(gives={"pairs"})
def preferred(scores: Scores, rollout: Rollout) -> Tensor:
    """+1 for the best and -1 for the worst sample of each group, 0 for all others.

    0 in a group that ties or of which a single sample can be trained and was scored: no sample is
    preferred to itself. Of equals the first one counts. Shape: [B, T]. Source: OAIF,
    arXiv:2402.04792, which takes two samples of a prompt for a pair.
    """
    usable = scores.scored & rollout.trained.any(1)
    return spread_over_steps(extremes(scores.total, usable, rollout.group), rollout.trained)


def extremes(score: Tensor, usable: Tensor, group: Tensor) -> Tensor:
    """+1 at the first best and -1 at the first worst usable row of each group that varies: [B]"""
    best, worst = _first_best(score, usable, group), _first_best(-score, usable, group)
    varies = score[best] - score[worst] > TIE
    place = torch.arange(len(score), device=score.device)
    return ((place == best).to(score.dtype) - (place == worst).to(score.dtype)) * varies


def _first_best(score: Tensor, usable: Tensor, group: Tensor) -> Tensor:
    """The row that leads the group of each row; any one where none is usable. [B] int64"""
    ids, row = torch.unique(group, return_inverse=True)
    known = torch.where(usable, score, -torch.inf)
    most = known.new_full((len(ids),), -torch.inf).scatter_reduce(0, row, known, "amax")
    place = torch.arange(len(score), device=score.device)
    leads = torch.where(known == most[row], place, len(score))
    return place.new_full((len(ids),), len(score)).scatter_reduce(0, row, leads, "amin")[row]
