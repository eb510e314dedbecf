"""Policy losses: (CoupledBatch, *, numbers) -> loss per step [B, T], to be minimised."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, between, positive, register_policy_loss
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch

MAX_LOG_RATIO = 20.0  # e^20 is finite in float32, and far beyond any useful ratio


def ratio_of(logp: Tensor, old_logp: Tensor) -> Tensor:
    """exp(logp - old_logp), [B, T]."""
    return (logp - old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def k3_of(logp: Tensor, other: Tensor) -> Tensor:
    """exp(-x) + x - 1 >= 0, whose mean under the policy is the KL.

    x = logp - other, [B, T] nats. Only its lower end is limited, where exp(-x) would overflow.
    """
    log_ratio = (logp - other).clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-log_ratio) + log_ratio


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, *, low: float, high: float, most: float | None = None
) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A); to be maximised (PPO, arXiv:1707.06347 eq. 7).

    `most` caps the first r, so a bad step that became far more likely costs at most `most` |A|. All
    are [B, T].
    """
    capped = ratio if most is None else ratio.clamp(max=most)
    return torch.minimum(capped * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def imitation_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """The fraction of steps equal to the greedy one, if the policy reports it."""
    if batch.likeliest is None:
        return {}
    return {"actor/token_accuracy": masked_mean(batch.likeliest, batch.mask)}


# -log p of demonstrations
@register_policy_loss(reads={"likeliest"}, on_fresh_samples=True, metrics=imitation_metrics)
def nll(batch: CoupledBatch) -> Tensor:
    """-log p of demonstrated steps, times the score of their row; on samples it is `reinforce`.

    Shape: [B, T] nats. Source: maximum likelihood, written as a loss on advantages (Tandem's own).
    """
    return -batch.logp * batch.advantages


# -A log p, for fresh samples
@register_policy_loss(zero_at_zero_advantage=True, on_fresh_samples=True)
def reinforce(batch: CoupledBatch) -> Tensor:
    """-A log p; its gradient is the policy gradient only while the samples are fresh.

    Shape: [B, T]. Source: Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    return -batch.logp * batch.advantages


def clip_metrics(
    batch: CoupledBatch, *, clip_low: float, clip_high: float, ratio_max: float | None
) -> dict[str, Metric]:
    """Fractions of steps whose gradient the clip removed, and of steps outside the clip range."""
    ratio = ratio_of(batch.logp, batch.old_logp)
    low = (ratio < 1 - clip_low) & (batch.advantages < 0)
    high = (ratio > 1 + clip_high) & (batch.advantages > 0)
    outside = (ratio < 1 - clip_low) | (ratio > 1 + clip_high)
    fractions = {
        "clip_frac": low | high,
        "clip_frac_low": low,
        "clip_frac_high": high,
        "ratio_outside": outside,
    }
    if ratio_max is not None:
        fractions["dual_clip_frac"] = (ratio > ratio_max) & (batch.advantages < 0)
    return {f"actor/{name}": masked_mean(where, batch.mask) for name, where in fractions.items()}


# Clipped surrogate with its two clip numbers (PPO, GRPO, DAPO)
@register_policy_loss(
    reads={"old_logp"},
    clips=1.0,
    units={"clip_low": "clip", "clip_high": "clip", "ratio_max": "ratio"},
    zero_at_zero_advantage=True,
    metrics=clip_metrics,
)
def ppo(
    batch: CoupledBatch,
    *,
    # A bad step whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 0.2,
    # A good step whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 0.2,
    # Caps the ratio of bad steps: dual clip (published: 3), two-sided clip (published: 4).
    ratio_max: Annotated[float, positive] | None = None,
) -> Tensor:
    """PPO, GRPO, Dr. GRPO and DAPO, which differ only in advantage, clip numbers and weights.

    `ratio_max` > 1 + clip_high is both the c of dual clip and the delta of the two-sided clip,
    which coincide there: a bad step beyond it has no gradient. Shape: [B, T].
    Source: PPO, arXiv:1707.06347; dual clip, arXiv:1912.09729.
    """
    ratio = ratio_of(batch.logp, batch.old_logp)
    return -clipped_surrogate(ratio, batch.advantages, low=clip_low, high=clip_high, most=ratio_max)
