"""An advantage: `algorithm/advantage=over_median`."""

from torch import Tensor

from tandem import register_adv_estimator
from tandem.types import Rollout, Scores


@register_adv_estimator(compares="group")
def over_median(scores: Scores, rollout: Rollout, *, scale: float = 1.0) -> Tensor:
    """How much better a sample scored than the median of its group, on every step: [B, T]."""
    over = scores.total.clone()
    for group in rollout.group.unique():
        over[rollout.group == group] -= scores.total[rollout.group == group].median()
    over = over.where(scores.scored, 0)  # a missing reward is not a low one
    return scale * over[:, None] * rollout.mask
