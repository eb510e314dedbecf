"""Losses that limit a step without removing its gradient, [B, T]."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, positive, register_policy_loss
from tandem.losses.policy import ratio_of
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch


def cispo_metrics(batch: CoupledBatch, *, ratio_max: float) -> dict[str, Metric]:
    """The fraction of steps whose ratio is capped."""
    above = ratio_of(batch.logp, batch.old_logp) > ratio_max
    return {"actor/ratio_capped": masked_mean(above, batch.mask)}


# -A log p times a capped ratio: no step loses its gradient (CISPO)
@register_policy_loss(
    reads={"old_logp"},
    units={"ratio_max": "ratio"},
    zero_at_zero_advantage=True,
    metrics=cispo_metrics,
)
def cispo(
    batch: CoupledBatch,
    *,
    # Cap of the ratio itself, not of its distance from 1: 5 for tokens.
    ratio_max: Annotated[float, positive] = 5.0,
) -> Tensor:
    """-min(r, ratio_max) A log p, the capped ratio detached: no step loses its gradient.

    `ratio_max` is absolute, not 1 + something. Source: MiniMax-M1, arXiv:2506.13585. Shape: [B, T].
    """
    ratio = ratio_of(batch.logp, batch.old_logp).clamp(max=ratio_max).detach()
    return -ratio * batch.advantages * batch.logp


# A soft gate in place of the clip (SAPO)
@register_policy_loss(
    reads={"old_logp"},
    units={"tau_good": "none", "tau_bad": "none", "width": "clip"},
    zero_at_zero_advantage=True,
)
def sapo(
    batch: CoupledBatch,
    *,
    tau_good: Annotated[float, positive] = 1.0,  # steepness of the gate for good steps
    tau_bad: Annotated[float, positive] = 1.05,  # steepness of the gate for bad steps
    width: Annotated[float, positive] = 1.0,  # scale of |ratio - 1|
) -> Tensor:
    """-(4 w / tau) sigmoid(tau (r - 1) / w) A: a soft gate whose slope at r = 1 is the policy
    gradient; `width` w is the scale of |r - 1|.

    A larger tau for bad steps makes their gradient fade sooner (arXiv:2511.20347). Shape: [B, T].
    """
    away = (ratio_of(batch.logp, batch.old_logp) - 1) / width
    good, bad = ((tau * away).sigmoid() * 4 * width / tau for tau in (tau_good, tau_bad))
    return -torch.where(batch.advantages > 0, good, bad) * batch.advantages


# -A log p with a quadratic penalty to the sampling weights instead of a clip (DRO)
@register_policy_loss(reads={"old_logp"}, units={"beta": "preference"})
def dro(
    batch: CoupledBatch,
    *,
    # Coefficient of the quadratic penalty, in units of a preference temperature.
    beta: Annotated[float, at_least(0)] = 0.1,
) -> Tensor:
    """-A log p + beta / 2 (log p - log p_old)^2: a penalty instead of a clip.

    Shape: [B, T]. Source: DRO, arXiv:2405.19107.
    """
    pull = (batch.logp - batch.old_logp).square()
    return -batch.logp * batch.advantages + 0.5 * beta * pull


def penalized_surrogate(ratio: Tensor, advantages: Tensor, *, width: Tensor | float) -> Tensor:
    """-A r + |A| (r - 1)^2 / (2 width): its gradient is 0 at r = 1 + sign(A) width and reverses
    beyond. All are [B, T]."""
    return -advantages * ratio + advantages.abs() * (ratio - 1).square() / (2 * width)


def beyond(ratio: Tensor, batch: CoupledBatch, *, width: Tensor | float) -> dict[str, Metric]:
    """The fraction of steps with a reversed gradient. ratio: [B, T]."""
    back = batch.advantages.sign() * (ratio - 1) > width
    return {"actor/pulled_back": masked_mean(back, batch.mask)}


def cfpo_metrics(batch: CoupledBatch, *, width: float) -> dict[str, Metric]:
    """The fraction of steps that are led back."""
    return beyond(ratio_of(batch.logp, batch.old_logp), batch, width=width)


# A quadratic penalty instead of the clip, which pulls back steps beyond it (CFPO, SPO)
@register_policy_loss(
    reads={"old_logp"},
    units={"width": "clip"},
    zero_at_zero_advantage=True,
    metrics=cfpo_metrics,
)
def cfpo(
    batch: CoupledBatch,
    *,
    # |ratio - 1| at which the gradient is 0, and reverses beyond: the clip of PPO.
    width: Annotated[float, positive] = 0.2,
) -> Tensor:
    """-A r + |A| (r - 1)^2 / (2 width): clipping without a clip, smooth everywhere.

    `width` corresponds to the clip of PPO. Shape: [B, T]. Source: CFPO, arXiv:2601.22801, which
    is SPO's objective.
    """
    return penalized_surrogate(ratio_of(batch.logp, batch.old_logp), batch.advantages, width=width)


def width_of(batch: CoupledBatch, *, delta: float) -> Tensor:
    """|ratio - 1| of a token whose probability changed by `delta`. [B, T]"""
    return delta * (-batch.behaviour_logp).exp()


def drpo_metrics(batch: CoupledBatch, *, delta: float) -> dict[str, Metric]:
    """The fraction of steps that are led back."""
    ratio = ratio_of(batch.logp, batch.behaviour_logp)
    return beyond(ratio, batch, width=width_of(batch, delta=delta))


# A quadratic penalty instead of the clip, by the change of a token's probability (DRPO)
@register_policy_loss(
    reads={"behaviour_logp"},
    units={"delta": "none"},
    zero_at_zero_advantage=True,
    refused={
        "steps": "it compares probabilities of tokens, but a Gaussian step has a density; set "
        "algorithm/loss=cfpo",
        "pictures": "it compares probabilities of tokens, but a regression error is not one; set "
        "algorithm/loss=ppo",
    },
    metrics=drpo_metrics,
)
def drpo(
    batch: CoupledBatch,
    *,
    # Change of a token's probability at which the gradient is 0, and reverses beyond; above 1 it
    # only weakens the gradient, by at most 1 / delta.
    delta: Annotated[float, positive] = 12.5,
) -> Tensor:
    """-A r + |A| q (r - 1)^2 / (2 delta), r = p / q, q the probability that the sampler gave.

    The gradient is -A r (1 - sign(A (r - 1)) |p - q| / delta): a rare token may change its ratio
    freely, a likely one may not. Shape: [B, T]. Source: DRPO, arXiv:2606.09821.
    """
    ratio = ratio_of(batch.logp, batch.behaviour_logp)
    return penalized_surrogate(ratio, batch.advantages, width=width_of(batch, delta=delta))
