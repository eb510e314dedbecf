"""Advantages by who beats whom within a group: (Scores, Rollout, *, numbers) -> [B, T]."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import TIE, Scale, group_relative, spread_over_steps, unbiased_std
from tandem.contracts import at_least, register_adv_estimator
from tandem.types import Rollout, Scores


# +1 for the best and -1 for the worst sample of a group, for losses of pairs
@register_adv_estimator(gives={"pairs"}, compares="group")
def preferred(scores: Scores, rollout: Rollout) -> Tensor:
    """+1 for the best and -1 for the worst sample of each group, 0 for all others.

    0 in a group that ties or has a single scored sample to train. The first of equal samples
    counts. Shape: [B, T]. Source: OAIF, arXiv:2402.04792, with two samples of a prompt as a pair.
    """
    usable = scores.scored & rollout.trained.any(1)
    return spread_over_steps(extremes(scores.total, usable, rollout.group), rollout.trained)


# The share of its group that a sample beats, instead of its score (Pref-GRPO)
@register_adv_estimator(compares="group")
def win_rate(
    scores: Scores,
    rollout: Rollout,
    *,
    # Spread of a group that win rates are divided by; null: no division.
    scale: Scale | None = unbiased_std,
    eps: Annotated[float, at_least(0)] = 1e-6,  # added to the spread that win rates are divided by
) -> Tensor:
    """`group_relative` of win rates, which depend only on the ranking within a group.

    For rewards that score samples separately; one that compares them, such as
    reward=judge_pairs, already gives win rates. Shape: [B, T]. Source: Pref-GRPO,
    arXiv:2508.20751.
    """
    rates = win_rates(scores.total, scores.scored, rollout.group)
    return group_relative(replace(scores, total=rates), rollout, scale=scale, eps=eps)


def win_rates(score: Tensor, known: Tensor, group: Tensor) -> Tensor:
    """The share of the other known rows of its group that a row beats, a tie half: [B].

    0 for an unknown row, and for one without others to compare with.
    """
    won, rivals = count_wins(score, known, group)
    return won / rivals.clamp(min=1)


def count_wins(score: Tensor, known: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the other known rows of its group a row beats (a tie counts half), and how many
    there are: [B] each."""
    rival = (group[:, None] == group) & known & known[:, None]
    rival.fill_diagonal_(False)
    lead = score[:, None] - score
    won = torch.where(lead.abs() < TIE, 0, lead.sign()).add(1).div(2)
    return (won * rival).sum(1), rival.sum(1)


def extremes(score: Tensor, usable: Tensor, group: Tensor) -> Tensor:
    """+1 at the first best and -1 at the first worst usable row of each group that varies: [B]"""
    best, worst = _first_best(score, usable, group), _first_best(-score, usable, group)
    varies = score[best] - score[worst] > TIE
    place = torch.arange(len(score), device=score.device)
    return ((place == best).to(score.dtype) - (place == worst).to(score.dtype)) * varies


def _first_best(score: Tensor, usable: Tensor, group: Tensor) -> Tensor:
    """The best usable row of each row's group; arbitrary if none is usable. [B] int64"""
    ids, row = torch.unique(group, return_inverse=True)
    known = torch.where(usable, score, -torch.inf)
    most = known.new_full((len(ids),), -torch.inf).scatter_reduce(0, row, known, "amax")
    place = torch.arange(len(score), device=score.device)
    leads = torch.where(known == most[row], place, len(score))
    return place.new_full((len(ids),), len(score)).scatter_reduce(0, row, leads, "amin")[row]
