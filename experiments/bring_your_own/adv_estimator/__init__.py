"""An advantage: `algorithm/advantage=over_median`."""

import torch
from torch import Tensor

from tandem import register_adv_estimator
from tandem.types import Rollout, Scores


@register_adv_estimator(compares="group")
def over_median(scores: Scores, rollout: Rollout, *, scale: float = 1.0) -> Tensor:
    """How much better a sample scored than the median of its group, on every step: [B, T]."""
    over = torch.zeros_like(scores.total)
    for group in rollout.group[scores.scored].unique():  # a missing reward is not a low one
        rows = scores.scored & (rollout.group == group)
        over[rows] = scores.total[rows] - scores.total[rows].quantile(0.5)
    return scale * over[:, None] * rollout.mask
