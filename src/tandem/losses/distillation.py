"""On-policy distillation, [B, T]: the student's velocity against a teacher's on its own states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.contracts import register_distillation_target, register_policy_loss
from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.wrong_output import wrong_value
from tandem.dynamics.regression import energy
from tandem.metrics import Metric, masked_mean
from tandem.types import DecoupledBatch

# Targets: the difference to the teacher [B, T, D], and the variance that scales it.
Target = Callable[[DecoupledBatch], tuple[Tensor, Tensor]]
LEAST = 1e-8


# The mean of the sampled step, scaled by the variance of its noise (default)
@register_distillation_target
def xt(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The mean of the sampled step, scaled by the variance of the step if it has noise.

    The difference is [B, T, D], the variance [B, T]. Source: Diffusion-OPD.
    """
    noisy = batch.std > 0
    variance = torch.where(noisy, batch.std.square().clamp(min=LEAST), 1)
    return batch.velocity_gain[..., None] * batch.error, variance


# The velocity, under dynamics=ode
@register_distillation_target(noiseless=True)
def velocity(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The velocity; only under dynamics=ode, where a step depends on nothing else.

    The difference is [B, T, D], the variance [B, T], all 1. Source: Diffusion-OPD.
    """
    return batch.error, torch.ones_like(batch.sigma)


# The predicted picture, under dynamics=ode
@register_distillation_target(noiseless=True)
def x0(batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The predicted picture, x - sigma velocity; only under dynamics=ode.

    The difference is [B, T, D], the variance [B, T], all 1. Source: Diffusion-OPD.
    """
    return -batch.sigma[..., None] * batch.error, torch.ones_like(batch.sigma)


def teacher_metrics(batch: DecoupledBatch) -> dict[str, Metric]:
    """(velocity - the teacher's)^2, comparable between runs with different targets."""
    return {"actor/teacher_distance": masked_mean(energy(batch.error), batch.mask)}


@register_policy_loss(
    reads={"velocity_gain", "std"},
    on_errors=True,
    refused={
        "steps": "it needs a teacher's velocity at the sampled states; set "
        "algorithm.objective=distillation"
    },
    metrics=teacher_metrics,
)
def distillation(
    batch: DecoupledBatch,
    *,
    target: Target = xt,  # what student and teacher are compared by
    # true: divides by the mean magnitude, so a distance instead of its square.
    self_normalize: bool = False,
) -> Tensor:
    """<d^2>, d = student - teacher of the target, < > the mean over latent dimensions.

    `self_normalize` divides by <|d|>, a constant, which makes it a distance. The error of the batch
    is the student's velocity minus the teacher's on states of the student's path; advantages are
    not read (Diffusion-OPD). Shape: [B, T]. Source: Diffusion-OPD.
    """
    difference, variance = _compare(target, batch)
    value = energy(difference)
    if self_normalize:
        value = value / (difference.detach().abs().mean(-1) + LEAST)
    return value / variance


def _compare(target: Target, batch: DecoupledBatch) -> tuple[Tensor, Tensor]:
    """The difference [B, T, D] and the variance [B, T]. Raises WrongOutput for anything else, which
    would broadcast over rows or steps."""
    found = ask_unwritten(target, batch)
    match found:
        case (Tensor() as difference, Tensor() as variance):
            if (difference.shape, variance.shape) == (batch.error.shape, batch.sigma.shape):
                return difference, variance
    want = f"the difference [B, T, D] and the variance [B, T], here {[*batch.error.shape]} and "
    raise wrong_value(target, found, f"{want}{[*batch.sigma.shape]}")
