"""Losses with one ratio per sample, [B, T]: every step of a row has the value of the row.

With `sequence_mean` a row counts once, as in the papers; with `sequence_sum` once per step, as in
LUSPO.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, between, register_policy_loss
from tandem.losses.policy import clipped_surrogate
from tandem.metrics import Max, Metric, Min, Sum, masked_mean
from tandem.types import CoupledBatch

MAX_MEAN_LOG_RATIO = 10.0  # of a sample's mean step; e^10 is far outside any clip
PRODUCT_LIMITS = (math.log(1e-8), 20.0)  # of the log ratio of a whole sample
NEVER_FAR = (
    "its weight decays as the ratio of a whole sample leaves 1, but a ratio of means over latent "
    "dimensions hardly does, so nothing would bound the update; set algorithm/loss=ppo"
)


def log_ratio_of(batch: CoupledBatch) -> Tensor:
    """[B, T] nats, without gradient outside the mask, which sums over a sample would add."""
    return torch.where(batch.mask, batch.logp - batch.old_logp, 0)


def sample_mean(x: Tensor, batch: CoupledBatch) -> Tensor:
    """The mean over the steps of each sample [B, 1]; x is 0 elsewhere."""
    return x.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)


def mean_log_ratio(batch: CoupledBatch) -> Tensor:
    """[B, 1] nats per step: the log of the geometric mean of a sample's ratios."""
    return sample_mean(log_ratio_of(batch), batch)


def per_sample(x: Tensor, batch: CoupledBatch) -> Sum:
    """The mean over samples that have a step. x: [B]"""
    return masked_mean(x, batch.mask.any(1))


def sequence_ratio(batch: CoupledBatch) -> dict[str, Metric]:
    """Mean, smallest and largest ratio of samples with a step."""
    ratio, sampled = mean_log_ratio(batch)[:, 0].exp(), batch.mask.any(1)
    return {
        "actor/seq_ratio_mean": per_sample(ratio, batch),
        "actor/seq_ratio_min": Min(torch.where(sampled, ratio, torch.inf).min()),
        "actor/seq_ratio_max": Max(torch.where(sampled, ratio, -torch.inf).max()),
    }


def gspo_metrics(batch: CoupledBatch, *, clip_low: float, clip_high: float) -> dict[str, Metric]:
    """Fractions of samples whose gradient the clip removed, and the ratio of samples."""
    ratio = mean_log_ratio(batch).exp()
    low = ((ratio < 1 - clip_low) & (batch.advantages < 0)).any(1)
    high = ((ratio > 1 + clip_high) & (batch.advantages > 0)).any(1)
    fractions = {"clip_frac": low | high, "clip_frac_low": low, "clip_frac_high": high}
    metrics = {f"actor/seq_{name}": per_sample(x, batch) for name, x in fractions.items()}
    return metrics | sequence_ratio(batch)


# One clipped ratio per sample (GSPO, LUSPO)
@register_policy_loss(
    reads={"old_logp"},
    per="sample",
    clips=1.5e-3,  # GSPO's published 3e-4 corresponds to PPO's 0.2
    units={"clip_low": "sequence", "clip_high": "sequence"},
    zero_at_zero_advantage=True,
    metrics=gspo_metrics,
)
def gspo(
    batch: CoupledBatch,
    *,
    # A bad sample whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 3e-4,
    # A good sample whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 4e-4,
) -> Tensor:
    """One ratio per sample: the geometric mean of its step ratios (arXiv:2507.18071): [B, T]."""
    ratio = mean_log_ratio(batch).clamp(max=MAX_MEAN_LOG_RATIO).exp()
    return -clipped_surrogate(ratio, batch.advantages, low=clip_low, high=clip_high)


# The ratio of the sample, the gradient of each step: for advantages that vary by step
@register_policy_loss(
    reads={"old_logp"},
    clips=1.5e-3,
    units={"clip_low": "sequence", "clip_high": "sequence"},
    zero_at_zero_advantage=True,
    metrics=gspo_metrics,
)
def gspo_token(
    batch: CoupledBatch,
    *,
    # A bad sample whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 3e-4,
    # A good sample whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 4e-4,
) -> Tensor:
    """The value of GSPO's ratio with the gradient of each step's own log p (arXiv:2507.18071).

    With one advantage per sample and `sequence_mean` it is GSPO, value and gradient; advantages may
    vary by step. Shape: [B, T].
    """
    own = batch.logp - batch.logp.detach()
    ratio = (mean_log_ratio(batch).detach() + own).clamp(max=MAX_MEAN_LOG_RATIO).exp()
    return -clipped_surrogate(ratio, batch.advantages, low=clip_low, high=clip_high)


def gmpo_metrics(batch: CoupledBatch, *, clip_low: float, clip_high: float) -> dict[str, Metric]:
    """Fractions of steps whose gradient the clip removed, in log space; the ratio of a sample."""
    log_ratio = log_ratio_of(batch)
    low = (log_ratio < -clip_low) & (batch.advantages < 0)
    high = (log_ratio > clip_high) & (batch.advantages > 0)
    fractions = {"clip_frac": low | high, "clip_frac_low": low, "clip_frac_high": high}
    metrics = {f"actor/{name}": masked_mean(x, batch.mask) for name, x in fractions.items()}
    return metrics | sequence_ratio(batch)


# Geometric mean of a sample's clipped ratios (GMPO)
@register_policy_loss(
    reads={"old_logp"},
    per="sample",
    clips=1.0,  # nats, like a ratio near 1
    units={"clip_low": "clip", "clip_high": "clip"},
    zero_at_zero_advantage=True,
    metrics=gmpo_metrics,
)
def gmpo(
    batch: CoupledBatch,
    *,
    # The log ratio of a bad step is limited to -clip_low nats.
    clip_low: Annotated[float, at_least(0)] = 0.4,
    # The log ratio of a good step is limited to clip_high nats.
    clip_high: Annotated[float, at_least(0)] = 0.4,
) -> Tensor:
    """The geometric mean of a sample's clipped step ratios (arXiv:2507.20673).

    The clip numbers are nats: a step's ratio is limited to exp(-clip_low) or exp(clip_high) in the
    direction of its advantage. Shape: [B, T].
    """
    log_ratio = log_ratio_of(batch)
    good, bad = log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low)
    mean = sample_mean(torch.where(batch.advantages > 0, good, bad), batch)
    return -mean.clamp(max=MAX_MEAN_LOG_RATIO).exp() * batch.advantages


def reshaped_ratio(
    batch: CoupledBatch, *, good: tuple[float, float], bad: tuple[float, float]
) -> Tensor:
    """W^power exp(rate (1 - W)), W the product of a sample's ratios: 1 at W = 1, small far off.

    Shape: [B, 1].
    """
    log_product = log_ratio_of(batch).detach().sum(1, keepdim=True).clamp(*PRODUCT_LIMITS)
    of_good, of_bad = (
        (power * log_product + rate * (1 - log_product.exp())).exp() for power, rate in (good, bad)
    )
    return torch.where(batch.advantages >= 0, of_good, of_bad)


def vespo_metrics(
    batch: CoupledBatch, *, good: tuple[float, float], bad: tuple[float, float]
) -> dict[str, Metric]:
    """The mean weight phi of the samples, and the ratio of samples."""
    phi = reshaped_ratio(batch, good=good, bad=bad)
    return {"actor/vespo_phi": masked_mean(phi, batch.mask)} | sequence_ratio(batch)


# A smooth weight by the ratio of the whole sample instead of a clip (VESPO)
@register_policy_loss(
    reads={"old_logp"},
    units={"good": "none", "bad": "none"},
    zero_at_zero_advantage=True,
    refused={"steps": NEVER_FAR, "pictures": NEVER_FAR},
    metrics=vespo_metrics,
)
def vespo(
    batch: CoupledBatch,
    *,
    # Power and rate of the weight for advantages of 0 or more.
    good: Annotated[tuple[float, float], at_least(0)] = (2.0, 3.0),
    # Power and rate of the weight for advantages below 0.
    bad: Annotated[tuple[float, float], at_least(0)] = (3.0, 2.0),
) -> Tensor:
    """-phi A log p: a smooth weight of the whole sample instead of a clip (arXiv:2602.10693).

    phi is detached. `good` and `bad` are its power and rate for either sign of the advantage.
    Shape: [B, T].
    """
    phi = reshaped_ratio(batch, good=good, bad=bad)
    return -phi * batch.advantages * batch.logp
