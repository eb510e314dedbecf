"""Advantages that are weights of likelihoods, of better samples less those of worse ones."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import centre, exp_below_largest, group_sum, spread_over_steps
from tandem.contracts import positive, register_adv_estimator
from tandem.types import Rollout, Scores


# Softmax weights of the better samples less those of the worse (wd1)
@register_adv_estimator(compares="group")
def wd1(
    scores: Scores,
    rollout: Rollout,
    *,
    psi: Annotated[float, positive] = 1.0,  # the larger, the more the best and the worst count
) -> Tensor:
    """G [softmax(psi A) - softmax(-psi A)] over the G scored samples of a group, A = R - mean.

    Times G, so that a mean over rows is the published sum over a group. They add up to 0, and a
    group that ties gets 0. Source: wd1, arXiv:2507.08838. Shape: [B, T].
    """
    better = psi * centre(scores, rollout.group)
    count = group_sum(scores.scored, rollout.group)
    weight = softmax(better, scores, rollout) - softmax(-better, scores, rollout)
    return spread_over_steps(count * weight, rollout.mask)


def softmax(x: Tensor, scores: Scores, rollout: Rollout) -> Tensor:
    """Over the scored samples of each group; 0 of the others. x: [B] -> [B]."""
    powers = exp_below_largest(x[:, None], rollout.group, scores.scored[:, None])[:, 0]
    total = group_sum(powers, rollout.group)
    return powers / torch.where(total > 0, total, 1)
