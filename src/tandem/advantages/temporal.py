"""Returns and advantages over time, on trained steps only.

The step after a trained step is the next trained one: gaps in the mask are skipped, and values on
untrained steps are ignored. Results are 0 outside the mask. Advantages
(Scores, Rollout, *, numbers) -> [B, T] are built from pure functions of tensors [B, T].
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import TIE
from tandem.contracts import declare, fraction, register_adv_estimator
from tandem.types import Rollout, Scores


# The return of a step, without a baseline (REINFORCE++ normalises it)
@register_adv_estimator(in_time=True)
def reward_to_go(
    scores: Scores,
    rollout: Rollout,
    *,
    gamma: Annotated[float, fraction] = 1.0,  # discount per step of later rewards
) -> Tensor:
    """G_t = r_t + gamma G_t+, without a baseline; whitened it is REINFORCE++ (arXiv:2501.03262).

    Shape: [B, T].
    """
    return return_to_go(step_rewards(scores, rollout), scored_steps(scores, rollout), gamma=gamma)


# Generalized advantage estimation with a critic; needs algorithm.critic, as in algorithm=ppo
@register_adv_estimator("gae", reads={"old_values"}, in_time=True)
def generalised(
    scores: Scores,
    rollout: Rollout,
    *,
    gamma: Annotated[float, fraction] = 1.0,  # discount per step
    # Lambda of GAE: 0.95 as published for short answers, 1 for long ones.
    lam: Annotated[float, fraction] = 0.95,
) -> Tensor:
    """The advantages of `gae` from the values before the update; not whitened.

    Shape: [B, T]. Source: GAE, arXiv:1506.02438.
    """
    return _estimates(scores, rollout, gamma, lam)[0]


@declare(reads={"old_values"}, in_time=True)
def gae_returns(
    scores: Scores,
    rollout: Rollout,
    *,
    gamma: Annotated[float, fraction] = 1.0,  # discount per step
    # Lambda of GAE; 1: the score itself; 0: one step ahead by the values.
    lam: Annotated[float, fraction] = 0.95,
) -> Tensor:
    """The returns of `gae`, the targets of a critic; for a sample without a score its own values.

    Shape: [B, T].
    """
    returns = _estimates(scores, rollout, gamma, lam)[1]
    unknown = rollout.trained & ~scores.scored[:, None]
    return torch.where(unknown, rollout.old_values, returns)


def _estimates(scores: Scores, rollout: Rollout, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    rewards, mask = step_rewards(scores, rollout), scored_steps(scores, rollout)
    return gae(rewards, rollout.old_values, mask, gamma=gamma, lam=lam)


def scored_steps(scores: Scores, rollout: Rollout) -> Tensor:
    """[B, T] bool: the trained steps of samples that have a score."""
    return rollout.trained & scores.scored[:, None]


def step_rewards(scores: Scores, rollout: Rollout) -> Tensor:
    """[B, T]: rewards per step; by default all of the score is on the last trained step.

    0 on steps that are not trained and on samples without a score.
    """
    known = scored_steps(scores, rollout)
    if scores.per_step is not None:
        return torch.where(known, scores.per_step, 0)
    return on_last_step(scores.total, known)


def on_last_step(value: Tensor, mask: Tensor) -> Tensor:
    """A value [B] on the last step of the mask [B, T], 0 elsewhere: [B, T]."""
    place = mask.cumsum(1)
    return torch.where(mask & (place == place[:, -1:]), value[:, None], 0)


def return_to_go(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """G_t = r_t + gamma G_t+, t+ the next trained step: [B, T]."""
    return discount(rewards, mask, decay=gamma)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Advantages A_t = delta_t + gamma lam A_t+, and returns A_t + V_t.

    delta_t = r_t + gamma V_t+ - V_t; the value after the last trained step is 0.
    Source: arXiv:1506.02438. Advantages are not whitened here. All are [B, T].
    """
    delta = rewards + gamma * shift_to_next(values, mask) - values
    advantages = discount(delta, mask, decay=gamma * lam)
    return advantages, torch.where(mask, advantages + values, 0)


def discount(x: Tensor, mask: Tensor, *, decay: float) -> Tensor:
    """y_t = x_t + decay y_t+, 0 outside the mask: [B, T] -> [B, T]."""
    carried, result = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for t in reversed(range(x.shape[1])):
        carried = torch.where(mask[:, t], x[:, t] + decay * carried, carried)
        result[:, t] = torch.where(mask[:, t], carried, 0)
    return result


def shift_to_next(x: Tensor, mask: Tensor) -> Tensor:
    """x of the next trained step, 0 if there is none: [B, T] -> [B, T]."""
    carried, result = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for t in reversed(range(x.shape[1])):
        result[:, t] = carried
        carried = torch.where(mask[:, t], x[:, t], carried)
    return result


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the trained steps of all rows, var the unbiased one.

    0 outside the mask, and everywhere if x is the same on all trained steps. Shape: [B, T] ->
    [B, T].
    """
    count, dtype, x = mask.sum(), x.dtype, x.double()
    mean = torch.where(mask, x, 0).sum() / count.clamp(min=1)
    centred = torch.where(mask, x - mean, 0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    centred = torch.where(variance < TIE**2, 0, centred)
    return (centred * (variance + 1e-8).rsqrt()).to(dtype)
