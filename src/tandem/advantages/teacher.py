"""Advantages from a teacher, [B, T]: its log-ratio to the student on sampled tokens.

Scores and groups are not used: the log-ratio has a natural zero, which a baseline or a division by
the std would shift. `algorithm/advantage=task_and_teacher` adds the advantage of a task, with
statistics of the task only.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.temporal import discount, return_to_go
from tandem.contracts import between, fraction, positive, register_adv_estimator
from tandem.types import Rollout, Scores, taught_steps

OF_FLOWS = (
    "a teacher of flows predicts velocities, not log-probabilities of steps; set "
    "algorithm=diffusion_opd"
)
OF_TOKENS = {"steps": OF_FLOWS, "pictures": OF_FLOWS}
READS = {"teacher_logp", "old_logp"}


# 0 everywhere: the loss reads no advantage (GKD, SDPO)
@register_adv_estimator(taught=True, neutral=True)
def none(scores: Scores, rollout: Rollout) -> Tensor:
    """0, for losses that read no advantage.

    Shape: [B, T]. Tandem's own.
    """
    return torch.zeros_like(rollout.mask, dtype=scores.total.dtype)


# Log-ratio of teacher and student: sampled reverse KL (on-policy distillation)
@register_adv_estimator(reads=READS, taught=True, refused=OF_TOKENS)
def from_teacher(
    scores: Scores,
    rollout: Rollout,
    *,
    coef: Annotated[float, positive] = 1.0,  # factor of the advantage
    # Discount per step of later log-ratios; 0: only the step's own.
    gamma: Annotated[float, fraction] = 0.0,
) -> Tensor:
    """coef times the sum of gamma^i (log teacher - log student) over a step and later ones.

    With gamma=0 the expected policy gradient is minus that of the reverse KL at each state, the
    states constant; with 1 that of the whole answer. 0 on rows without a teacher.
    Shape: [B, T]. Source: on-policy distillation, Thinking Machines Lab, 2025.
    """
    return coef * return_to_go(log_ratio(rollout), taught_steps(rollout), gamma=gamma)


# Extrapolation beyond the teacher, away from a reference (G-OPD)
@register_adv_estimator(reads={*READS, "ref_logp"}, taught=True, refused=OF_TOKENS)
def g_opd(
    scores: Scores,
    rollout: Rollout,
    *,
    coef: Annotated[float, positive] = 1.0,  # factor of the advantage
    # Extrapolation away from the reference; 1: to the teacher, above 1: beyond it.
    scale: Annotated[float, positive] = 1.25,
) -> Tensor:
    """coef ((log teacher - log student) + (scale - 1) (log teacher - log reference)).

    scale=1 is `from_teacher`; above 1 the student moves beyond the teacher, away from the
    reference, which is the initial student. Shape: [B, T]. Source: G-OPD, arXiv:2602.12125.
    """
    steps = taught_steps(rollout)
    beyond = torch.where(steps, rollout.teacher_logp - rollout.ref_logp, 0)
    return coef * (log_ratio(rollout) + (scale - 1) * beyond)


# The mean log-ratio of a step and later ones (the long part of MiniLLM)
@register_adv_estimator(reads=READS, taught=True, refused=OF_TOKENS)
def minillm_long(
    scores: Scores,
    rollout: Rollout,
    *,
    coef: Annotated[float, positive] = 1.0,  # factor of the advantage
    # Discount per step of later log-ratios.
    gamma: Annotated[float, between(0, 1, open_low=True)] = 1.0,
) -> Tensor:
    """coef sum gamma^i R_i / sum gamma^i over a step and later ones, R = log teacher - log student:
    a mean, so that long answers do not weigh more.

    Shape: [B, T]. Source: MiniLLM, arXiv:2306.08543, without the divergence.
    """
    steps = taught_steps(rollout)
    total = discount(log_ratio(rollout), steps, decay=gamma)
    count = discount(steps.to(total.dtype), steps, decay=gamma)
    return coef * torch.where(steps, total / count.clamp(min=1), 0)


def log_ratio(rollout: Rollout) -> Tensor:
    """log teacher - log student when sampling, [B, T] nats; 0 without a teacher."""
    return torch.where(taught_steps(rollout), rollout.teacher_logp - rollout.old_logp, 0)
