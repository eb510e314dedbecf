"""Estimates of KL(policy || reference) from sampled steps, [B, T] nats (Schulman 2020).

With x = logp - ref_logp. What each does as a *loss* on fresh samples: k2, `k3_unbiased` and
`k3_plus` have the gradient of the reverse KL; plain k3 has that of the forward KL, as GRPO
published it; k1 has none at all, which is why it is not offered.
"""

from __future__ import annotations

from torch import Tensor

from tandem.types import CoupledBatch, needs

LIMIT = 20.0


def k2_of(logp: Tensor, other: Tensor) -> Tensor:
    return (logp - other).square() / 2


def k3_of(logp: Tensor, other: Tensor) -> Tensor:
    """exp(-x) + x - 1 >= 0, whose mean under the policy is the KL."""
    log_ratio = (logp - other).clamp(-LIMIT, LIMIT)
    return (-log_ratio).exp() + log_ratio - 1


@needs("ref_logp")
def k2(batch: CoupledBatch) -> Tensor:
    """x^2 / 2: the right gradient on fresh samples, a biased value."""
    return k2_of(batch.logp, batch.ref_logp)


@needs("ref_logp")
def k3(batch: CoupledBatch) -> Tensor:
    """As GRPO published it (arXiv:2402.03300): the right value, the gradient of the forward KL."""
    return k3_of(batch.logp, batch.ref_logp)


@needs("ref_logp", "old_logp")
def k3_unbiased(batch: CoupledBatch) -> Tensor:
    """k3 times the differentiable ratio of each step: right in value and gradient, off-policy too.

    Source: DeepSeek-V3.2.
    """
    ratio = (batch.logp - batch.old_logp).clamp(-LIMIT, LIMIT).exp()
    return ratio * k3_of(batch.logp, batch.ref_logp)


@needs("ref_logp")
def k3_plus(batch: CoupledBatch) -> Tensor:
    """The value of k3 with the gradient of k2 (straight-through)."""
    slope = k2_of(batch.logp, batch.ref_logp)
    return slope - slope.detach() + k3_of(batch.logp, batch.ref_logp).detach()
