"""Corrections for rows sampled by other weights, and choices of the old policy.

A correction is (batch, *, numbers) -> weight [B, T], which multiplies the policy loss of a step.
It reads the ratio of the old policy to the sampler, both constant over the update, so it combines
with any ratio of the loss. It has no gradient and is 0 outside the mask; a rejected step still
counts in the denominator of the mean, so rejection makes the update smaller.

An old policy is batch -> old_logp [B, T], the denominator of the ratio that losses clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import (
    at_least,
    fraction,
    positive,
    register_correction,
    register_old_logprobs,
)
from tandem.losses.policy import MAX_LOG_RATIO, ratio_of
from tandem.metrics import EffectiveSize, Metric, masked_mean
from tandem.types import CoupledBatch

Correction = Callable[[CoupledBatch], Tensor]

BOTH = {"old_logp", "behaviour_logp"}  # the weight is their ratio


def sampler_log_ratio(batch: CoupledBatch) -> Tensor:
    """log old - log behaviour, [B, T] nats, 0 outside the mask."""
    return torch.where(batch.mask, batch.old_logp - batch.behaviour_logp, 0).detach()


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def step_ratio(batch: CoupledBatch) -> Tensor:
    """The ratio of each step, [B, T]; 1 outside the mask."""
    return torch.where(batch.mask, ratio_of(batch.old_logp, batch.behaviour_logp), 1).detach()


def product_ratio(batch: CoupledBatch) -> Tensor:
    """The ratio of a whole sample, [B, 1]; its variance grows with the length without bound."""
    return _exp(sampler_log_ratio(batch).sum(1, keepdim=True))


def geometric_ratio(batch: CoupledBatch) -> Tensor:
    """The geometric mean ratio over the steps of a sample, [B, 1]."""
    total = sampler_log_ratio(batch).sum(1, keepdim=True)
    return _exp(total / batch.mask.sum(1, keepdim=True).clamp(min=1))


def _within(ratio: Tensor, low: float, high: float) -> Tensor:
    return (ratio >= low) & (ratio <= high)


def effect(batch: CoupledBatch, weight: Tensor) -> dict[str, Metric]:
    """Metrics of a correction: the mean weight, the rejected share, and the effective size.

    ess: the effective number of steps of an importance-weighted mean, as a share of all. `weight`:
    [B, T].
    """
    sampled, inside = batch.mask.any(1), torch.where(batch.mask, weight, 0)
    return {
        "rollout_corr/weight_mean": masked_mean(weight, batch.mask),
        "rollout_corr/rejected": masked_mean(weight == 0, batch.mask),
        "rollout_corr/rejected_samples": masked_mean((weight == 0).all(1), sampled),
        "rollout_corr/ess": EffectiveSize(inside.sum(), inside.square().sum(), batch.mask.sum()),
    }


def _capped_steps(batch: CoupledBatch, *, ratio_max: float) -> dict[str, Metric]:
    return {"rollout_corr/capped": masked_mean(step_ratio(batch) > ratio_max, batch.mask)}


def _capped_samples(batch: CoupledBatch, *, ratio_max: float) -> dict[str, Metric]:
    capped = product_ratio(batch)[:, 0] > ratio_max
    return {"rollout_corr/capped_samples": masked_mean(capped, batch.mask.any(1))}


# No correction: for fresh samples of an exact sampler, and losses relative to the sampler
@register_correction(neutral=True)
def none(batch: CoupledBatch) -> Tensor:
    """Every step counts fully: [B, T]. Tandem's own: no correction."""
    return batch.mask.to(batch.logp.dtype)


# min(r, 2) of each step: truncated importance sampling (default)
@register_correction(reads=BOTH, metrics=_capped_steps)
def token_tis(batch: CoupledBatch, *, ratio_max: Annotated[float, positive] = 2.0) -> Tensor:
    """min(r, ratio_max) of each step: truncated importance sampling.

    ratio_max: cap of a step's ratio. Shape: [B, T]. Source: truncated importance sampling,
    https://fengyao.notion.site/off-policy-rl.
    """
    return step_ratio(batch).clamp(max=ratio_max) * batch.mask


# min(R, 2), R the product over a sample's steps
@register_correction(reads=BOTH, metrics=_capped_samples)
def sequence_tis(batch: CoupledBatch, *, ratio_max: Annotated[float, positive] = 2.0) -> Tensor:
    """min(R, ratio_max), R the product over the sample's steps.

    ratio_max: cap of a sample's ratio. Shape: [B, T]. Source: verl's rollout correction at the
    level of samples.
    """
    return product_ratio(batch).clamp(max=ratio_max) * batch.mask


# r of each step, 0 where it is outside a band
@register_correction(reads=BOTH, rising=(("low", "high"),))
def icepop(
    batch: CoupledBatch,
    *,
    low: Annotated[float, at_least(0)] = 0.5,  # smallest ratio of a step that is trained on
    high: Annotated[float, positive] = 5.0,  # largest ratio of a step that is trained on
) -> Tensor:
    """r of each step, 0 where it is outside [low, high].

    Shape: [B, T]. Source: IcePop of Ring-1T, arXiv:2510.18855.
    """
    ratio = step_ratio(batch)
    return ratio * _within(ratio, low, high) * batch.mask


# R of the sample, 0 where it is outside a band (TRL's default)
@register_correction(reads=BOTH, rising=(("low", "high"),))
def sequence_mask(
    batch: CoupledBatch,
    *,
    low: Annotated[float, at_least(0)] = 0.0,  # smallest ratio of a sample that is trained on
    high: Annotated[float, positive] = 3.0,  # largest ratio of a sample that is trained on
) -> Tensor:
    """R of the sample, 0 where it is outside [low, high]: [B, T]. Source: TRL's sequence_mask."""
    ratio = product_ratio(batch)
    return ratio * _within(ratio, low, high) * batch.mask


# Samples whose R is outside a band are not trained on
@register_correction(reads=BOTH, rising=(("low", "high"),))
def sequence_rejection(
    batch: CoupledBatch,
    *,
    low: Annotated[float, at_least(0)] = 0.5,  # smallest ratio of a sample that is trained on
    high: Annotated[float, positive] = 2.0,  # largest ratio of a sample that is trained on
) -> Tensor:
    """1, but 0 for samples whose R is outside [low, high].

    Shape: [B, T]. Source: verl's rejection sampling of samples.
    """
    return _within(product_ratio(batch), low, high) * none(batch)


# Samples whose mean ratio is outside a band are not trained on
@register_correction(reads=BOTH, rising=(("low", "high"),))
def geometric_rejection(
    batch: CoupledBatch,
    *,
    # Smallest geometric mean ratio of a sample that is trained on.
    low: Annotated[float, at_least(0)] = 0.999,
    # Largest geometric mean ratio of a sample that is trained on.
    high: Annotated[float, positive] = 1.001,
) -> Tensor:
    """1, but 0 for samples whose geometric mean ratio is outside [low, high].

    Shape: [B, T]. Source: verl's rejection sampling by the geometric mean.
    """
    return _within(geometric_ratio(batch), low, high) * none(batch)


def _staleness(batch: CoupledBatch, *, low: float, high: float, decay: float) -> dict[str, Metric]:
    ratio = step_ratio(batch)
    return {
        "rollout_corr/capped": masked_mean(~_within(ratio, low, high), batch.mask),
        "rollout_corr/version_gap": masked_mean(batch.version_gap, batch.mask),
    }


# clip(r) times a decay per version that the sample is old
@register_correction(reads=BOTH | {"version_gap"}, rising=(("low", "high"),), metrics=_staleness)
def staleness_decay(
    batch: CoupledBatch,
    *,
    # Smallest ratio of a step; smaller ones are raised to it.
    low: Annotated[float, at_least(0)] = 0.5,
    # Largest ratio of a step; larger ones are lowered to it.
    high: Annotated[float, positive] = 2.0,
    decay: Annotated[float, fraction] = 0.9,  # factor of the weight per version of age; 1: no decay
) -> Tensor:
    """clip(r, low, high) decay^gap, gap being the age of the sampling weights in versions.

    It is not normalised by its mean, which would undo the decay and depend on the split. With
    algorithm/old_logprobs=current it weights the current policy, for losses without a ratio.
    Tandem's own. Shape: [B, T].
    """
    shrink = torch.as_tensor(decay).to(batch.old_logp) ** batch.version_gap
    return step_ratio(batch).clamp(low, high) * shrink * batch.mask


# The weights at the start of the update, computed by the trainer (default)
@register_old_logprobs(reads={"old_logp"}, old_policy="recompute")
def recompute(batch: CoupledBatch) -> Tensor:
    """The log-probability under the weights at the start of the update, by the trainer.

    Shape: [B, T] nats. Source: decoupled PPO, arXiv:2110.00641.
    """
    return batch.old_logp


# The sampler as old policy: no forward pass
@register_old_logprobs(reads={"behaviour_logp"}, old_policy="rollout")
def rollout(batch: CoupledBatch) -> Tensor:
    """The sampler itself: no forward pass; the clip limits staleness and mismatch together.

    Shape: [B, T] nats. Source: verl's bypass mode.
    """
    return batch.behaviour_logp


# Interpolation between sampler and current policy by versions: no forward pass (AReaL)
@register_old_logprobs(reads={"behaviour_logp", "version_gap"}, old_policy="interpolate")
def interpolate(batch: CoupledBatch) -> Tensor:
    """Interpolation between sampler and current policy by versions: no forward pass (AReaL).

    It estimates the previous version as (gap - 1) / gap of the way from sampler to policy.
    Shape: [B, T] nats. Source: AReaL's code (arXiv:2505.24298).
    """
    gap = batch.version_gap
    share = ((gap - 1) / gap.clamp(min=1)).clamp(min=0)
    return batch.behaviour_logp + share * (batch.logp.detach() - batch.behaviour_logp)


# The current policy: for losses without a ratio, which the correction then adds
@register_old_logprobs(old_policy="current")
def current(batch: CoupledBatch) -> Tensor:
    """The current policy: for losses without a ratio, which a correction then adds.

    Shape: [B, T] nats. Tandem's own.
    """
    return batch.logp.detach()
