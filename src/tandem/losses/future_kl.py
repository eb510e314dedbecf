"""A policy loss that weights a step by the log ratios of later steps, [B, T]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.temporal import discount
from tandem.contracts import at_least, between, positive, register_policy_loss
from tandem.losses.policy import clip_metrics, ppo, ratio_of
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch


def future_kl(batch: CoupledBatch, *, half_life: float, ratio_max: float) -> Tensor:
    """F_t, the sum of log r over a step and the later ones, discounted by distance.

    Steps with a ratio above `ratio_max` add nothing. Shape: [B, T] nats, detached.
    """
    log_ratio = (batch.logp - batch.old_logp).detach()
    log_ratio = torch.where(log_ratio > math.log(ratio_max), 0, log_ratio)
    return discount(log_ratio, batch.mask, decay=2 ** (-1 / half_life))


def weight_of(
    batch: CoupledBatch,
    *,
    half_life: float,
    weight_low: float,
    weight_high: float,
    ratio_max: float,
    safety: float,
) -> Tensor:
    """exp(F) within its bounds; at most 1 for a bad step past `safety`. [B, T]"""
    weight = future_kl(batch, half_life=half_life, ratio_max=ratio_max).exp()
    lost = (batch.advantages < 0) & (ratio_of(batch.logp, batch.old_logp) > safety)
    fading = weight.clamp(1 - weight_high, 1)
    return torch.where(lost, fading, weight.clamp(1 - weight_low, 1 + weight_high))


def is_broken(batch: CoupledBatch, *, ratio_max: float) -> Tensor:
    """[B, 1] bool: samples with two or more bad steps with a ratio above `ratio_max`."""
    ratio = ratio_of(batch.logp, batch.old_logp)
    passed = batch.mask & (batch.advantages < 0) & (ratio > ratio_max)
    return passed.sum(1, keepdim=True) >= 2


def fipo_metrics(
    batch: CoupledBatch,
    *,
    clip_low: float,
    clip_high: float,
    half_life: float,
    weight_low: float,
    weight_high: float,
    ratio_max: float,
    safety: float,
) -> dict[str, Metric]:
    """The metrics of PPO, the mean weight, and the fraction of excluded samples."""
    weight = weight_of(
        batch, half_life=half_life, weight_low=weight_low, weight_high=weight_high,
        ratio_max=ratio_max, safety=safety,
    )  # fmt: skip
    broken = is_broken(batch, ratio_max=ratio_max)[:, 0]
    clipped = clip_metrics(batch, clip_low=clip_low, clip_high=clip_high, ratio_max=ratio_max)
    return clipped | {
        "actor/future_weight": masked_mean(weight, batch.mask),
        "actor/future_broken": masked_mean(broken, batch.mask.any(1)),
    }


# PPO, each step weighted by the change of later steps (FIPO)
@register_policy_loss(
    reads={"old_logp"},
    in_time=True,
    clips=1.0,
    units={
        "clip_low": "clip",
        "clip_high": "clip",
        "weight_low": "clip",
        "weight_high": "clip",
        "ratio_max": "ratio",
        "safety": "ratio",
        "half_life": "none",
    },
    zero_at_zero_advantage=True,
    refused={
        "pictures": "it weights a step by later steps, but the noise levels of a finished picture "
        "have no order; set algorithm/loss=ppo",
    },
    metrics=fipo_metrics,
)
def fipo(
    batch: CoupledBatch,
    *,
    # A bad step whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 0.2,
    # A good step whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 0.28,
    # Steps in which the discount of later changes halves.
    half_life: Annotated[float, positive] = 32.0,
    # 1 minus the smallest weight of a step; 0.2 for small models.
    weight_low: Annotated[float, between(0, 1)] = 0.0,
    weight_high: Annotated[float, between(0, 1)] = 0.2,  # the largest weight of a step minus 1
    # Cap of a bad step's ratio; a sample with two or more bad steps past it is excluded.
    ratio_max: Annotated[float, positive] = 3.0,
    # Ratio of a bad step above which its weight is at most 1; above `ratio_max` it has no gradient.
    safety: Annotated[float, positive] = 10.0,
) -> Tensor:
    """PPO with a dual clip on A w, w = exp(F) in [1 - weight_low, 1 + weight_high], F the sum of
    log r over a step and all later ones, discounted and detached.

    A step followed by reinforced steps counts more. A sample with two or more bad steps past
    `ratio_max` is excluded. Shape: [B, T]. Source: FIPO, arXiv:2603.19835.
    """
    weight = weight_of(
        batch, half_life=half_life, weight_low=weight_low, weight_high=weight_high,
        ratio_max=ratio_max, safety=safety,
    )  # fmt: skip
    weighed = replace(batch, advantages=weight * batch.advantages)
    loss = ppo(weighed, clip_low=clip_low, clip_high=clip_high, ratio_max=ratio_max)
    return torch.where(is_broken(batch, ratio_max=ratio_max), 0, loss)
