"""On-policy distillation, [B, T]: a teacher judges the student's velocity on its own states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.contracts import register_distillation_target, register_policy_loss
from tandem.dynamics.regression import energy
from tandem.metrics import Metric, masked_mean
from tandem.types import DecoupledBatch

# What is to agree with the teacher: the difference [B, T, D], and the variance it is taken in.
Target = Callable[[DecoupledBatch], tuple[Tensor, Tensor]]
LEAST = 1e-8


# The mean of the step that was taken, by the variance of its noise (default)
@register_distillation_target
def xt(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The mean of the step that was taken, by the variance of the step if it had any.

    The difference is [B, T, D], the variance [B, T]. Source: Diffusion-OPD.
    """
    noisy = batch.std > 0
    variance = torch.where(noisy, batch.std.square().clamp(min=LEAST), 1)
    return batch.velocity_gain[..., None] * batch.error, variance


# The velocity, under dynamics=ode
@register_distillation_target(noiseless=True)
def velocity(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The velocity; under dynamics=ode alone, where it is all that a step depends on.

    The difference is [B, T, D], the variance [B, T], all 1. Source: Diffusion-OPD.
    """
    return batch.error, torch.ones_like(batch.sigma)


# The picture that is expected, under dynamics=ode
@register_distillation_target(noiseless=True)
def x0(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The picture that is expected, x - sigma velocity; under dynamics=ode alone.

    The difference is [B, T, D], the variance [B, T], all 1. Source: Diffusion-OPD.
    """
    return -batch.sigma[..., None] * batch.error, torch.ones_like(batch.sigma)


def apart(batch: DecoupledBatch) -> dict[str, Metric]:
    """(velocity - the teacher's)^2, whatever the target: it compares runs."""
    return {"actor/teacher_distance": masked_mean(energy(batch.error), batch.mask)}


@register_policy_loss(
    reads={"velocity_gain", "std"},
    on_errors=True,
    refused={
        "steps": "it asks a teacher about the states of the steps that were sampled; set "
        "algorithm.objective=distillation"
    },
    metrics=apart,
)
def distillation(
    batch: DecoupledBatch, *, target: Target = xt, self_normalize: bool = False
) -> Tensor:
    """<d^2>, d = student - teacher of the target, < > the mean over latent dimensions.

    `self_normalize` divides by <|d|>, a constant, and so makes it a distance. The error of the
    batch is the student's velocity less the teacher's, on states of the student's own path; no
    advantage is read (Diffusion-OPD). Shape: [B, T]. Source: Diffusion-OPD.
    """
    difference, variance = target(batch)
    value = energy(difference)
    if self_normalize:
        value = value / (difference.detach().abs().mean(-1) + LEAST)
    return value / variance
