"""Policy losses on Gaussian steps, [B, T]: they read the `transition` of a batch.

A log-probability is a mean over D latent dimensions. Where the mean moved by d since the step
x' = mean_old + std z was taken, log r = <z d> / std - <d^2> / (2 std^2), < > that mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import (
    at_least,
    between,
    positive,
    register_policy_loss,
    register_step_distance,
    register_step_weight,
)
from tandem.contracts.inner_parts import ask_inner
from tandem.dynamics.likelihood import velocity_distance
from tandem.losses.policy import clip_metrics, ppo, ratio_of
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch, Transition

StepWeight = Callable[[Transition], Tensor]  # -> [B, T]
Distance = Callable[[Transition], Tensor]  # of the policy to the sampling one: [B, T]

OF_GAUSSIAN_STEPS = {
    "tokens": "it reads the mean and the noise of a denoising step; set algorithm/loss=ppo",
    "pictures": "it reads the mean and the noise of a random step, but none was taken; set "
    "algorithm/loss=ppo",
}


# Weight 1 / duration of the step, as in GRPO-Guard's code
@register_step_weight
def inverse_time(transition: Transition) -> Tensor:
    """1 / -dt, as in GRPO-Guard's code: [B, T]. Source: GRPO-Guard's code, arXiv:2510.22319."""
    return _inverse(transition.sigma - transition.next_sigma)


# Weight that makes all guarded log-ratios equally sensitive to velocity, under any dynamics
@register_step_weight
def inverse_gain(transition: Transition) -> Tensor:
    """1 / |d mean / d velocity|: a change of velocity moves every guarded log-ratio alike.

    For Flow-SDE below sigma = 1 it is `inverse_time` times a constant; for Dance-SDE and CPS it
    balances the steps. The delta of GRPO-Guard's code for Dance-SDE, (1 + eta^2 (1 - sigma) /
    (2 sigma)) / -dt, multiplies by the imbalance again, which squares it. Tandem's own.
    Shape: [B, T].
    """
    return _inverse(-transition.velocity_gain)


# Weight by the noise of the step (TempFlow-GRPO)
@register_step_weight
def noise(
    transition: Transition,
    *,
    scale: Annotated[float, positive] = 2.25,  # factor of the standard deviation of a step
) -> Tensor:
    """scale x std: largest for the noisiest steps (TempFlow-GRPO, arXiv:2508.04324): [B, T]."""
    return scale * transition.std


# Weight that makes log p of all steps equally sensitive to velocity (Flash-GRPO)
@register_step_weight
def equal_steps(transition: Transition) -> Tensor:
    """std / |d mean / d velocity| over its mean in the row: a change of velocity moves log p of
    every step alike (the step weights of Flash-GRPO's code).

    Shape: [B, T]. Source: Flash-GRPO's code.
    """
    weight = transition.std * _inverse(-transition.velocity_gain)
    steps = (transition.std > 0).sum(1, keepdim=True).clamp(min=1)
    return weight * _inverse(weight.sum(1, keepdim=True) / steps)


def per_step(part: StepWeight | Distance, batch: CoupledBatch) -> Tensor:
    """The weight or the distance of each step: [B, T]. Raises WrongOutput for another shape."""
    return ask_inner(part, batch.transition, shape=batch.mask.shape, axes="[B, T]")


def _inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0, as it is outside the mask."""
    return torch.where(x == 0, 0, 1 / torch.where(x == 0, 1, x))


def weighted_ppo_metrics(
    batch: CoupledBatch, *, clip_low: float, clip_high: float, weight: StepWeight
) -> dict[str, Metric]:
    """PPO's metrics of the weighted steps: the clipped share, and the mean weight."""
    clipped = clip_metrics(batch, clip_low=clip_low, clip_high=clip_high, ratio_max=None)
    return clipped | {"actor/step_weight": masked_mean(per_step(weight, batch), batch.mask)}


@register_policy_loss(
    reads={"old_logp", "transition"},
    clips=1.0,
    units={"clip_low": "clip", "clip_high": "clip"},
    zero_at_zero_advantage=True,
    refused=OF_GAUSSIAN_STEPS,
    metrics=weighted_ppo_metrics,
)
def weighted_ppo(
    batch: CoupledBatch,
    *,
    # A bad step whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 0.2,
    # A good step whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 0.2,
    weight: StepWeight = noise,  # weight of each step, by its noise levels
) -> Tensor:
    """PPO's loss, each step times a weight that depends only on noise levels.

    Shape: [B, T]. Tandem's own: PPO under the step weights of this module.
    """
    return per_step(weight, batch) * ppo(batch, clip_low=clip_low, clip_high=clip_high)


def guard_ratio(batch: CoupledBatch) -> CoupledBatch:
    """The same steps, log r replaced by std (log r + KL) = <z d>.

    It has mean 0 under the sampling policy and the same scale at every step, so one clip is
    two-sided at every noise level. It assumes that log p is a density: for `cps` a normalised one.
    """
    step = batch.transition
    log_ratio = step.std * (batch.logp - batch.old_logp + step.kl_to_old)
    return replace(batch, logp=log_ratio, old_logp=torch.zeros_like(log_ratio))


def grpo_guard_metrics(
    batch: CoupledBatch, *, clip_low: float, clip_high: float, weight: StepWeight | None
) -> dict[str, Metric]:
    """PPO's metrics of the guarded ratio, and the mean of its logarithm, ideally near 0."""
    by_hand = guard_ratio(batch)
    clipped = clip_metrics(by_hand, clip_low=clip_low, clip_high=clip_high, ratio_max=None)
    return clipped | {"actor/guarded_log_ratio": masked_mean(by_hand.logp, batch.mask)}


@register_policy_loss(
    reads={"old_logp", "transition", "kl_to_old"},
    reads_density=True,
    clips=0.02,  # GRPO-Guard's published 4e-3 stands where PPO's 0.2 does
    units={"clip_low": "clip", "clip_high": "clip"},
    zero_at_zero_advantage=True,
    refused=OF_GAUSSIAN_STEPS,
    metrics=grpo_guard_metrics,
)
def grpo_guard(
    batch: CoupledBatch,
    *,
    # A bad step whose guarded ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 2e-6,
    # A good step whose guarded ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 2e-6,
    weight: StepWeight | None = inverse_time,  # weight of each step, by its noise levels; null: 1
) -> Tensor:
    """PPO's loss of the guarded ratio, each step times a weight (GRPO-Guard, arXiv:2510.22319).

    Shape: [B, T].
    """
    loss = ppo(guard_ratio(batch), clip_low=clip_low, clip_high=clip_high)
    return loss if weight is None else per_step(weight, batch) * loss


# The KL between a step's distributions, in nats per latent dimension
@register_step_distance
def exact_kl(transition: Transition) -> Tensor:
    """(mean - mean_old)^2 / (2 std^2): nats per latent dimension.

    Shape: [B, T]. Source: the KL of two Gaussians of one variance, as in Flow-DPPO
    (arXiv:2606.11025).
    """
    return transition.kl_to_old


# Squared distance of velocities: every noise level counts equally
@register_step_distance
def velocity_moved(transition: Transition) -> Tensor:
    """(velocity - velocity_old)^2, the mean over latent dimensions: [B, T]. Tandem's own."""
    return velocity_distance(transition.kl_to_old, transition.std, transition.velocity_gain)


def is_too_far(batch: CoupledBatch, *, distance: Distance, most: float) -> Tensor:
    """[B, T] bool, True where the policy is too far off and the advantage pulls it further."""
    away = (batch.logp - batch.old_logp) * batch.advantages > 0
    return away & (per_step(distance, batch) >= most)


def flow_dppo_metrics(batch: CoupledBatch, *, distance: Distance, most: float) -> dict[str, Metric]:
    """The fraction of steps without gradient, and the distance of the policy."""
    dropped = is_too_far(batch, distance=distance, most=most)
    return {
        "actor/dppo_masked": masked_mean(dropped, batch.mask),
        "actor/dppo_distance": masked_mean(per_step(distance, batch), batch.mask),
    }


@register_policy_loss(
    reads={"old_logp", "transition", "kl_to_old"},
    units={"most": "none"},
    zero_at_zero_advantage=True,
    refused=OF_GAUSSIAN_STEPS,
    metrics=flow_dppo_metrics,
)
def flow_dppo(
    batch: CoupledBatch,
    *,
    distance: Distance = exact_kl,  # distance of a step from the sampling policy's
    # Largest distance; a step beyond it that is pulled further has no gradient.
    most: Annotated[float, positive] = 1e-5,
) -> Tensor:
    """-r A, but 0 where the policy is beyond `most` and pulled further; no ratio is clipped.

    Such steps still count in the mean. Source: the Flow-DPPO recipe of UniRL. Shape: [B, T].
    """
    gain = ratio_of(batch.logp, batch.old_logp) * batch.advantages
    return torch.where(is_too_far(batch, distance=distance, most=most), 0, -gain)
