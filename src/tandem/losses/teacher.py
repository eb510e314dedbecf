"""Losses against a teacher on the student's own states, [B, T]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from tandem.contracts import Facts, at_least, positive, register_policy_loss
from tandem.losses.policy import ratio_of
from tandem.losses.wrappers import LossWrapper
from tandem.metrics import Metric, own_metrics
from tandem.types import CoupledBatch, taught_steps

OF_FLOWS = "a teacher of flows predicts velocities; set algorithm=diffusion_opd"
OF_TOKENS = {"steps": OF_FLOWS, "pictures": OF_FLOWS}


# The divergence from a teacher over the vocabulary at each state (GKD)
@register_policy_loss(
    reads={"divergence", "old_logp"},
    taught=True,
    units={"ratio_max": "ratio"},
    refused=OF_TOKENS,
)
def divergence(
    batch: CoupledBatch,
    *,
    # Cap of the ratio that corrects older rows; null: every ratio counts as 1.
    ratio_max: Annotated[float, positive] | None = 2.0,
) -> Tensor:
    """D_t times the ratio of the token sampled at this state, capped and without gradient.

    The states are constant, so effects on later states are ignored. On fresh samples every ratio is
    1. `ratio_max`: the cap; null replaces every ratio by 1. algorithm.teachers.divergence chooses
    the divergence. Shape: [B, T] nats. Source: GKD, arXiv:2306.13649; the ratio is SDPO's,
    arXiv:2601.20802.
    """
    return batch.divergence * capped_ratio(batch, ratio_max)


# The divergence from a teacher, estimated from its log-probabilities of the sampled tokens (SDPO)
@register_policy_loss(
    reads={"teacher_logp", "old_logp"},
    taught=True,
    units={"ratio_max": "ratio"},
    refused=OF_TOKENS,
)
def sampled_divergence(
    batch: CoupledBatch,
    *,
    # Cap of the ratio that corrects older rows; null: every ratio counts as 1.
    ratio_max: Annotated[float, positive] | None = 2.0,
) -> Tensor:
    """-(log teacher - log student) log student, the bracket constant, times the capped ratio:
    `reinforce` with the advantage `from_teacher`, recomputed for the student in every update.
    `ratio_max`: the cap; null replaces every ratio by 1.

    Shape: [B, T]. Source: SDPO, arXiv:2601.20802.
    """
    advantage = (batch.teacher_logp - batch.logp).detach()
    loss = -advantage * capped_ratio(batch, ratio_max) * batch.logp
    return torch.where(taught_steps(batch), loss, 0)


def capped_ratio(batch: CoupledBatch, most: float | None) -> Tensor:
    """min(r, most) without a gradient, [B, T]; None: 1."""
    if most is None:
        return torch.ones_like(batch.logp)
    return ratio_of(batch.logp, batch.old_logp).clamp(max=most).detach()


@register_policy_loss(
    "with_divergence",
    reads={"divergence"},
    units={"coef": "none"},
    refused=OF_TOKENS,
)
@dataclass(frozen=True, kw_only=True)
class WithDivergence(LossWrapper):
    """A loss of advantages plus the divergence from a teacher at each state.

    Source: MiniLLM, arXiv:2306.08543, whose advantages cover the states that follow.
    """

    says: ClassVar[str] = "with_divergence"

    coef: Annotated[float, at_least(0)] = 1.0  # factor of the divergence

    def own_facts(self, declared: Facts) -> Facts:
        return replace(super().own_facts(declared), zero_at_zero_advantage=False)

    def __call__(self, batch: CoupledBatch) -> Tensor:
        return self.loss(batch) + self.coef * batch.divergence

    def metrics(self, batch: CoupledBatch) -> dict[str, Metric]:
        return own_metrics(self.loss, batch)
