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


# The samples that the reward likes and auxiliary rewards do not (GARDO)
@register_kl_gate(named_rewards=("proxy", "auxiliary"))
def most_uncertain(
    scores: Scores,
    rollout: Rollout,
    *,
    proxy: str | None = None,  # the reward that may be hacked; null: their weighted sum
    auxiliary: Sequence[str] = (),  # others that judge the same, of weight 0 for instance
    share: Annotated[float, between(0, 1, open_low=True)] = 0.1,  # of all samples, at most
) -> Tensor:
    """[B] bool: the `share` of largest uncertainty, if it is not below 0.

    Uncertainty is the share of its group that a sample beats by the proxy, less the mean of the
    same by each auxiliary; without one, what is left is what the proxy likes best. Ties stand
    together. Source: GARDO, arXiv:2512.24138.
    """
    uncertain = uncertainty(scores, rollout, proxy=proxy, auxiliary=auxiliary)
    candidates = uncertain[scores.scored & (uncertain >= 0)]
    count = min(math.ceil(share * len(uncertain)), len(candidates))
    if not count:
        return torch.zeros_like(scores.scored)
    least = candidates.topk(count).values[-1]
    return scores.scored & (uncertain >= least)


def uncertainty(
    scores: Scores, rollout: Rollout, *, proxy: str | None, auxiliary: Sequence[str]
) -> Tensor:
    """Win share by the proxy minus the mean win share by the auxiliaries, from -1 to 1: [B]."""
    of_proxy = scores.total if proxy is None else scores.part(proxy, rollout.prompts)
    others = [scores.part(name, rollout.prompts) for name in auxiliary]
    own, *rest = (win_share(x, scores.scored, rollout.group) for x in (of_proxy, *others))
    return own - sum(rest) / max(len(rest), 1)


def win_share(score: Tensor, scored: Tensor, group: Tensor) -> Tensor:
    """The share of its group that a sample beats, itself counted: [B]. NaN is no score."""
    won, rivals = count_wins(score.nan_to_num(0.0), scored & ~score.isnan(), group)
    return won / (rivals + 1)
