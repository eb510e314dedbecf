"""Batches: the inputs of losses, and the outputs of a policy with gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from tandem.types.record import Compared, LossBatch, Shaped
from tandem.types.sample import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Gaussian steps x' ~ N(mean, std^2) of the dynamics; only the KLs carry a gradient."""

    std: Tensor  # [B, T] of every latent dimension
    sigma: Tensor  # [B, T] noise level before the step
    next_sigma: Tensor  # [B, T] and after it
    velocity_gain: Tensor  # [B, T] d mean / d velocity, below 0
    kl_to_old: Tensor | None = None  # [B, T] nats per latent dimension; None: not asked for
    kl_to_ref: Tensor | None = None  # [B, T] nats per latent dimension; None: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Log-probabilities of sampled steps and related outputs, with gradient; 0 outside the mask."""

    logp: Tensor  # [B, T] nats
    entropy: Tensor | None = None  # [B, T] nats; None: not asked for
    likeliest: Tensor | None = None  # [B, T] 1 where the step taken was the most likely
    upper_logp: Tensor | None = None  # [B, T] nats of an upper bound; None: not asked for
    values: Tensor | None = None  # [B, T] the critic's; None: not asked for
    # [B, T] nats, from the teacher of the row over all tokens of a state; None: not asked for
    divergence: Tensor | None = None
    sum_pi_squared: Tensor | None = None  # [B, T] over the vocabulary; None: not asked for
    transition: Transition | None = None  # None: not asked for, or the steps are not Gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledBatch(LossBatch, Compared):
    """The input of a coupled loss. Outside the mask every tensor is 0."""

    carries: ClassVar = "logp"
    compared_with: ClassVar = ("old_logp", "behaviour_logp", "ref_logp")

    logp: Tensor  # [B, T] nats; carries the gradient
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    old_logp: Tensor | None = None  # [B, T]
    behaviour_logp: Tensor | None = None  # [B, T]
    ref_logp: Tensor | None = None  # [B, T]
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    entropy: Tensor | None = None  # [B, T] nats; carries the gradient
    likeliest: Tensor | None = None  # [B, T] 1 where the step taken was the most likely, else 0
    upper_logp: Tensor | None = None  # [B, T] nats of an upper bound; carries the gradient
    values: Tensor | None = None  # [B, T]; carries the gradient
    old_values: Tensor | None = None  # [B, T]
    returns: Tensor | None = None  # [B, T] targets of the values
    teacher_logp: Tensor | None = None  # [B, T]
    divergence: Tensor | None = None  # [B, T] nats, from the teacher; carries the gradient
    key: Tensor | None = None  # [B] int64 of the draws that made the row
    baseline: Tensor | None = None  # [B] bool: rows for comparison only
    taught: Tensor | None = None  # [B] bool: rows that a teacher judges; None: all of them
    transition: Transition | None = None  # of Gaussian steps
    segment: Tensor | None = None  # [B, T] int8 place in SEGMENTS; None: steps of one kind


OF_SNAPSHOTS = {"old_error": "old", "fast_error": "fast"}  # error -> its name in algorithm.ema


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledBatch(Shaped, LossBatch):
    """The input of a decoupled loss: velocity errors at T noise levels of every picture.

    An error is predicted - true velocity, flat over the D latent dimensions; the truth is that of
    the data, noise - x0, or a teacher's. Outside the mask every tensor is 0.
    """

    carries: ClassVar = "error"
    compared_with: ClassVar = (*OF_SNAPSHOTS, "ref_error")
    axes: ClassVar = {
        "mask": "BT",
        **dict.fromkeys(("error", "ref_error", *OF_SNAPSHOTS), "BTD"),
        **dict.fromkeys(("sigma", "advantages", "velocity_gain", "std", "importance"), "BT"),
        "version_gap": "BT",
        **dict.fromkeys(("group", "key"), "B"),
    }

    error: Tensor  # [B, T, D] of the live policy; carries the gradient
    sigma: Tensor  # [B, T] in [0, 1], 1 = noise
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    old_error: Tensor | None = None  # [B, T, D] of the older policy that algorithm.ema keeps
    ref_error: Tensor | None = None  # [B, T, D] of the frozen reference
    fast_error: Tensor | None = None  # [B, T, D] of a fast moving average of the weights
    # For states on the sampler's path, of the step sampled there:
    velocity_gain: Tensor | None = None  # [B, T] d mean / d velocity, below 0
    std: Tensor | None = None  # [B, T] of its noise; 0: deterministic
    importance: Tensor | None = None  # [B, T] weight of the noise, if part of it is reused
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    key: Tensor | None = None  # [B] int64 of the draws that made the row


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnswer:
    """The outputs of a network trained beside the policy at T queries of a row, [B, T, D]."""

    error: Tensor  # of its velocity; carries its gradient
    x0: Tensor  # the predicted picture, without a gradient
    old_error: Tensor | None = None  # of its older weights, if its loss reads them
    fast_error: Tensor | None = None  # of its fast moving average


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingBatch(LossBatch):
    """The input of distribution matching losses: predicted pictures at T queries of a row.

    Predictions are flat over the D latent dimensions. Outside the mask every tensor is 0.
    """

    carries: ClassVar = "x0"
    compared_with: ClassVar = ("real_x0",)

    x0: Tensor  # [B, T, D] the generator's prediction at a state of its path; carries its gradient
    sigma: Tensor  # [B, T] of the query, x0 with noise added, in (0, 1]
    importance: Tensor  # [B, T] of the query's noise; 1 where it is all fresh
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64
    scored: Tensor  # [B] bool, False where advantages are not defined
    # Predictions at the query by:
    real_x0: Tensor | None = None  # [B, T, D] the frozen reference
    of_prompt: Tensor | None = None  # [B, T, D] the effect of the prompt on the reference's
    ref_error: Tensor | None = None  # [B, T, D] the reference's velocity error there
    version_gap: Tensor | None = None  # [B, T] iterations since the weights that took the step
    key: Tensor | None = None  # [B] int64 of the draws that made the row
    # By name, those of algorithm.networks.
    networks: Mapping[str, NetworkAnswer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The input of batch statistics over the rows of an update: one number per noise level."""

    value: Tensor  # [B, T] of each row
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    group: Tensor  # [B] int64


def taught_steps(record: Rollout | CoupledBatch) -> Tensor:
    """[B, T] bool: the trained steps with a teacher."""
    taught = record.taught
    return record.trained if taught is None else record.trained & taught[:, None]
