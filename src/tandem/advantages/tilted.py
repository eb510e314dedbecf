"""Advantages as softmax weights: of better samples minus those of worse ones."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import centre, exp_below_largest, group_sum, spread_over_steps
from tandem.contracts import positive, register_adv_estimator
from tandem.types import Rollout, Scores


# Softmax weights of better samples minus those of worse ones (wd1)
@register_adv_estimator(compares="group", of_likelihood=True)
def wd1(
    scores: Scores,
    rollout: Rollout,
    *,
    # Sharpness of the softmax; larger: more weight on the best and the worst.
    psi: Annotated[float, positive] = 1.0,
) -> Tensor:
    """G [softmax(psi A) - softmax(-psi A)] over the G scored samples of a group, A = R - mean.

    The factor G makes a mean over rows the published sum over a group. They add up to 0, and a
    group that ties gets 0. Source: wd1, arXiv:2507.08838. Shape: [B, T].
    """
    better = psi * centre(scores, rollout.group)
    count = group_sum(scores.scored, rollout.group)
    weight = softmax(better, scores, rollout) - softmax(-better, scores, rollout)
    return spread_over_steps(count * weight, rollout.mask)


def softmax(x: Tensor, scores: Scores, rollout: Rollout) -> Tensor:
    """Softmax over the scored samples of each group; 0 for others. x: [B] -> [B]."""
    powers = exp_below_largest(x[:, None], rollout.group, scores.scored[:, None])[:, 0]
    total = group_sum(powers, rollout.group)
    return powers / torch.where(total > 0, total, 1)
