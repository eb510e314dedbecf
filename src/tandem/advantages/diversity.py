"""An advantage that rewards good samples for differing from the others of their group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem.advantages.group import group_sum
from tandem.contracts import Facts, Wrapper, declare, facts_of
from tandem.types import Rollout, Scores


@declare(named_rewards=("distance",))
@dataclass(frozen=True)
class ByDistance(Wrapper):
    """A times the distance of a sample over the mean distance in its group, where A > 0.

    Bad samples, and samples without a distance, keep their advantage. Source: GARDO,
    arXiv:2512.24138; divided by the group's mean as in its code, so that the distance has no unit.
    """

    of: Callable[[Scores, Rollout], Tensor]  # the advantage that is multiplied by the distance
    distance: str = "nearest_distance"  # name of the reward whose value is the distance

    def own_facts(self, declared: Facts) -> Facts:
        of = facts_of(self.of)
        own = {"option": declared.option, "gives": declared.gives}
        return replace(of, **own, named_rewards=declared.named_rewards)

    def __call__(self, scores: Scores, rollout: Rollout) -> Tensor:
        advantages = self.of(scores, rollout)
        far = relative_distance(scores.reward(self.distance), rollout.group)
        return torch.where(advantages > 0, advantages * far[:, None], advantages)


def relative_distance(distance: Tensor, group: Tensor) -> Tensor:
    """The distance over its mean in the group; 1 if it is NaN or the mean is 0. [B] -> [B]"""
    known = ~distance.isnan()
    total = group_sum(torch.where(known, distance, 0), group)
    mean = total / group_sum(known, group).clamp(min=1)
    apart = known & (mean > 0)
    return torch.where(apart, distance / torch.where(apart, mean, 1), 1)
