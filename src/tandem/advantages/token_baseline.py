"""Returns minus a baseline per step, the group mean weighted by the gradient energy so far,
[B, T]."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.advantages.group import TIE, group_sum
from tandem.advantages.temporal import return_to_go, scored_steps, step_rewards
from tandem.contracts import register_adv_estimator
from tandem.types import Rollout, Scores


# R minus the group mean weighted by the gradient energy up to each token (OTB)
@register_adv_estimator(
    compares="group",
    reads={"old_logp", "sum_pi_squared"},
    in_time=True,
    refused={
        "steps": "it weights samples by the probabilities of tokens, but a Gaussian step has a "
        "density; set algorithm/advantage=opo",
        "pictures": "it weights samples by the probabilities of tokens, but a regression error is "
        "not one; set algorithm/advantage=opo",
    },
)
def otb(scores: Scores, rollout: Rollout) -> Tensor:
    """G_t - b_t, b_t = sum_i W_it G_it / sum_i W_it over the samples of the group that have a step
    t: the baseline of least variance, step by step.

    W is the squared norm of the gradient of a sample's log-probability by its logits, up to step t.
    0 where no other sample has a step t, and in a group that ties. Shape: [B, T]. Source:
    OTB, arXiv:2602.07078.
    """
    mask = scored_steps(scores, rollout)
    returns = return_to_go(step_rewards(scores, rollout), mask).double()
    energy = torch.where(mask, energy_of(rollout), 0).cumsum(1)
    place = torch.where(mask, mask.cumsum(1) - 1, mask.shape[1])  # untrained steps: last
    weights, worth = (in_order(x, place) for x in (energy, energy * returns))
    total = group_sum(weights, rollout.group)  # 0 if every token had probability 1
    baseline = group_sum(worth, rollout.group) / torch.where(total > 0, total, 1)
    advantages = returns - baseline.gather(1, place)
    varies = mask & (total.gather(1, place) > 0) & (advantages.abs() >= TIE)
    return torch.where(varies, advantages, 0).to(scores.total.dtype)


def energy_of(rollout: Rollout) -> Tensor:
    """1 - 2 p + sum p^2 = |onehot - p|^2 of each step, [B, T] float64."""
    probability = rollout.old_logp.double().exp()
    return (1 - 2 * probability + rollout.sum_pi_squared.double()).clamp(min=0)


def in_order(x: Tensor, place: Tensor) -> Tensor:
    """Trained steps moved together, without gaps: [B, T] -> [B, T + 1]."""
    blank = x.new_zeros(len(x), x.shape[1] + 1)
    return blank.scatter(1, place, x)
