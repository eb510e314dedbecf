"""Losses that compare the policy with the sampler, including engine mismatch, [B, T]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from tandem.contracts import at_least, declare, positive, register_policy_loss
from tandem.losses.policy import ratio_of
from tandem.losses.wrappers import LossWrapper
from tandem.metrics import Metric, masked_mean, own_metrics
from tandem.types import CoupledBatch

Bound = Callable[[CoupledBatch], Tensor]  # -> [B, T] bool, True where a step went too far
TINY = 1e-8  # keeps a logarithm finite if a probability rounds to 1

of_probabilities = declare(
    refused={
        "steps": "it compares probabilities of tokens, but a Gaussian step has a density; set "
        "algorithm=flow_dppo, which bounds the exact KL",
        "pictures": "it compares probabilities of tokens, but a regression error is not one; set "
        "algorithm/loss=ppo",
    }
)


@of_probabilities
def total_variation(
    batch: CoupledBatch,
    *,
    low: Annotated[float, at_least(0)] = 0.15,  # largest fall of a bad step's probability
    high: Annotated[float, at_least(0)] = 0.15,  # largest rise of a good step's probability
) -> Tensor:
    """Steps whose probability moved past its bound in the direction of the advantage.

    Shape: [B, T] bool.
    """
    moved = batch.logp.exp() - batch.behaviour_logp.exp()
    good, bad = batch.advantages > 0, batch.advantages < 0
    return (good & (moved > high)) | (bad & (-moved > low))


@of_probabilities
def binary_kl(
    batch: CoupledBatch,
    *,
    low: Annotated[float, at_least(0)] = 0.05,  # largest binary KL of a bad step, nats
    high: Annotated[float, at_least(0)] = 0.05,  # largest binary KL of a good step, nats
) -> Tensor:
    """Steps whose KL(sampler || policy) of "this token or any other" exceeds its bound in nats.

    Shape: [B, T] bool.
    """
    log_p, log_q = batch.logp, batch.behaviour_logp
    p, q = log_p.exp(), log_q.exp()
    divergence = q * (log_q - log_p) + (1 - q) * ((1 - q + TINY) / (1 - p + TINY)).log()
    good = (batch.advantages > 0) & (p > q)
    bad = (batch.advantages < 0) & (p < q)
    return (good & (divergence > high)) | (bad & (divergence > low))


def dppo_metrics(batch: CoupledBatch, *, too_far: Bound, ratio_max: float) -> dict[str, Metric]:
    """Fractions of steps whose gradient the bound removed, and whose ratio was capped."""
    capped = ratio_of(batch.logp, batch.behaviour_logp) > ratio_max
    return {
        "actor/dppo_masked": masked_mean(too_far(batch), batch.mask),
        "actor/ratio_capped": masked_mean(capped, batch.mask),
    }


@register_policy_loss(
    reads={"behaviour_logp"},
    units={"ratio_max": "none"},
    zero_at_zero_advantage=True,
    metrics=dppo_metrics,
)
def dppo(
    batch: CoupledBatch,
    *,
    too_far: Bound = total_variation,  # test for steps that moved too far from the sampler
    ratio_max: Annotated[float, positive] = 20.0,  # cap of the ratio to the sampler
) -> Tensor:
    """-min(r, ratio_max) A log p, r = p / q detached, 0 where a divergence went `too_far`.

    r is the ratio to the sampler, not to the weights at the start of the update.
    Source: arXiv:2602.04879. Shape: [B, T].
    """
    ratio = ratio_of(batch.logp, batch.behaviour_logp).clamp(max=ratio_max).detach()
    return torch.where(too_far(batch), 0, -ratio * batch.advantages * batch.logp)


def pull_metrics(batch: CoupledBatch, *, too_far: Bound, pull: float) -> dict[str, Metric]:
    """The fraction of steps whose gradient the bound removed, and the mean penalty."""
    distance = (batch.logp - batch.behaviour_logp).square()
    masked = masked_mean(too_far(batch), batch.mask)
    return {
        "actor/dppo_masked": masked,
        "actor/dppo_pull": masked_mean(pull * distance, batch.mask),
    }


@register_policy_loss(reads={"behaviour_logp"}, units={"pull": "none"}, metrics=pull_metrics)
def dppo_pulled(
    batch: CoupledBatch,
    *,
    too_far: Bound = total_variation,  # test for steps that moved too far from the sampler
    # Coefficient of the squared log ratio to the sampler, on every step.
    pull: Annotated[float, at_least(0)] = 1e-3,
) -> Tensor:
    """-r A, 0 where a divergence went `too_far`, plus pull (log p - log q)^2 on every step.

    The gradient of its first part is that of DPPO without a cap. Source: prime-rl's default.
    Shape: [B, T].
    """
    drift = (batch.logp - batch.behaviour_logp).square()
    gain = ratio_of(batch.logp, batch.behaviour_logp) * batch.advantages
    return torch.where(too_far(batch), 0, -gain) + pull * drift


@register_policy_loss(
    "opsm",
    reads={"behaviour_logp"},
    units={"delta": "none"},
    refused={
        "steps": "it drops samples at `delta` nats per step, which a mean over latent dimensions "
        "never reaches; set algorithm=flow_dppo, which bounds the exact KL",
        "pictures": "it needs the sampler's probability of a finished picture, which is unknown; "
        "set algorithm/loss=ppo",
    },
)
@dataclass(frozen=True, kw_only=True)
class OffPolicyMask(LossWrapper):
    """A loss, but 0 for bad samples that became unlikely (DeepSeek-V3.2).

    Unlikely: the mean over its steps of log q - log p, q the sampler, is above `delta` nats. Bad:
    its advantage is negative. Source: DeepSeek-V3.2, arXiv:2512.02556.
    """

    says: ClassVar[str] = "the off-policy mask"

    # Largest mean of log q - log p over a bad sample's steps, nats; q is the sampler.
    delta: Annotated[float, at_least(0)]

    def __call__(self, batch: CoupledBatch) -> Tensor:
        return torch.where(self.drop_mask(batch), 0, self.loss(batch))

    def drop_mask(self, batch: CoupledBatch) -> Tensor:
        """[B, T] bool"""
        gap = (batch.behaviour_logp - batch.logp).sum(1, keepdim=True)
        far = gap / batch.mask.sum(1, keepdim=True).clamp(min=1) > self.delta
        return far & (batch.advantages < 0)

    def metrics(self, batch: CoupledBatch) -> dict[str, Metric]:
        """The metrics of the loss, and the fraction of dropped samples."""
        dropped = self.drop_mask(batch).any(1)
        share = masked_mean(dropped, batch.mask.any(1))
        return own_metrics(self.loss, batch) | {"actor/opsm_dropped": share}
