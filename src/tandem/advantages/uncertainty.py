"""Gates of a KL: samples with a high reward on which auxiliary rewards disagree, [B]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.preference import count_wins
from tandem.contracts import between, register_kl_gate
from tandem.types import Rollout, Scores

ROUNDING = 1e-9  # 0.07 of 100 is 7, by floats a little more


# Samples ranked high by the reward and low by auxiliary rewards (GARDO)
@register_kl_gate(named_rewards=("proxy", "auxiliary"))
def most_uncertain(
    scores: Scores,
    rollout: Rollout,
    *,
    proxy: str | None = None,  # name of the reward that may be hacked; null: the weighted sum
    # Names of other rewards of the same quality, for example of weight 0.
    auxiliary: Sequence[str] = (),
    # Share of all samples that the KL applies to.
    share: Annotated[float, between(0, 1, open_low=True)] = 0.1,
) -> Tensor:
    """[B] bool: the `share` of all samples, rounded up, that is most uncertain and not below 0.

    Uncertainty is the share of the group that a sample beats by the proxy, minus the mean share by
    its auxiliaries; without auxiliaries it is the rank by the proxy. Ties are broken by the lowest
    key, which is random. Source: GARDO, arXiv:2512.24138.
    """
    uncertain = uncertainty(scores, rollout, proxy=proxy, auxiliary=auxiliary)
    candidate = scores.scored & (uncertain >= 0)
    key = rollout.group if rollout.key is None else rollout.key  # rows that were not sampled
    order = key.argsort(stable=True)
    known = torch.where(candidate, uncertain, -1)[order]
    order = order[known.argsort(descending=True, stable=True)]
    held = torch.zeros_like(candidate)
    held[order[: math.ceil(share * len(uncertain) - ROUNDING)]] = True
    return held & candidate


def uncertainty(
    scores: Scores, rollout: Rollout, *, proxy: str | None, auxiliary: Sequence[str]
) -> Tensor:
    """Win share by the proxy minus the mean win share by the auxiliaries, from -1 to 1: [B].

    NaN if the proxy has no score.
    """
    of_proxy = scores.total if proxy is None else scores.reward(proxy)
    own = win_share(of_proxy, scores.scored, rollout.group)
    if not auxiliary:
        return own
    rest = [win_share(scores.reward(name), scores.scored, rollout.group) for name in auxiliary]
    return own - torch.stack(rest).nanmean(0).nan_to_num(0.0)


def win_share(score: Tensor, scored: Tensor, group: Tensor) -> Tensor:
    """The share of its group that a sample beats, including itself: [B]; NaN without a score."""
    known = scored & ~score.isnan()
    won, rivals = count_wins(score.nan_to_num(0.0), known, group)
    return torch.where(known, won / (rivals + 1), torch.nan)
