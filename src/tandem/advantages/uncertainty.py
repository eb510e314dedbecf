"""Gates of a KL: the samples that it holds, those that a reward likes and others do not, [B]."""

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


# The samples that the reward likes and auxiliary rewards do not (GARDO)
@register_kl_gate(named_rewards=("proxy", "auxiliary"))
def most_uncertain(
    scores: Scores,
    rollout: Rollout,
    *,
    proxy: str | None = None,  # the reward that may be hacked; null: their weighted sum
    auxiliary: Sequence[str] = (),  # others that judge the same, of weight 0 for instance
    share: Annotated[float, between(0, 1, open_low=True)] = 0.1,  # of all samples
) -> Tensor:
    """[B] bool: the `share` of all samples, rounded up, that is most uncertain and not below 0.

    Uncertainty is the share of its group that a sample beats by the proxy, less the mean of the
    same by each auxiliary that judges it; without one, what is left is what the proxy likes best.
    Of equals it holds those of lowest key, which was drawn. Source: GARDO, arXiv:2512.24138.
    """
    uncertain = uncertainty(scores, rollout, proxy=proxy, auxiliary=auxiliary)
    candidate = scores.scored & (uncertain >= 0)
    key = rollout.group if rollout.key is None else rollout.key  # of rows that nobody drew
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

    NaN where the proxy gave none.
    """
    of_proxy = scores.total if proxy is None else scores.named(proxy)
    own = win_share(of_proxy, scores.scored, rollout.group)
    if not auxiliary:
        return own
    rest = [win_share(scores.named(name), scores.scored, rollout.group) for name in auxiliary]
    return own - torch.stack(rest).nanmean(0).nan_to_num(0.0)


def win_share(score: Tensor, scored: Tensor, group: Tensor) -> Tensor:
    """The share of its group that a sample beats, itself counted: [B]; NaN without a score."""
    known = scored & ~score.isnan()
    won, rivals = count_wins(score.nan_to_num(0.0), known, group)
    return torch.where(known, won / (rivals + 1), torch.nan)
