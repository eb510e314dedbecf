"""Policy losses on velocity errors at fresh noise, [B, T]: T noise levels of every picture.

An error e is predicted - true velocity, so x0_hat - x0 = -sigma e. <> is the mean over latent
dimensions.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tandem.advantages.group import group_mean
from tandem.contracts import at_least, between, positive, register_policy_loss
from tandem.dynamics.regression import energy
from tandem.losses.kl import optimality
from tandem.losses.policy import ratio_of
from tandem.metrics import Metric, masked_mean
from tandem.types import DecoupledBatch, Summary

LEAST = 1e-5  # smallest mean |error| used as a divisor


def size(error: Tensor) -> Tensor:
    """<|e|> without gradient, at least 1e-5: the divisor of adaptive weights. [..., D] -> [...]"""
    return error.detach().abs().mean(-1).clamp(min=LEAST)


def old_deviation(batch: DecoupledBatch) -> Metric:
    """<(v - v_old)^2>, the mean over levels."""
    return masked_mean(energy(batch.error - batch.old_error), batch.mask)


def nft_metrics(batch: DecoupledBatch, *, advantage_clip: float) -> dict[str, Metric]:
    """The optimality r of the pictures, and the distance of the policy to the old one."""
    wanted = optimality(batch.advantages, advantage_clip=advantage_clip)
    return {
        "actor/optimality": masked_mean(wanted, batch.mask),
        "actor/old_deviation": old_deviation(batch),
    }


# A row without advantage is still pulled to the old policy.
# Pulled to good pictures, pushed from bad ones, relative to an older policy (DiffusionNFT)
@register_policy_loss(
    reads={"old_error"},
    on_errors=True,
    units={"beta": "none", "advantage_clip": "none"},
    metrics=nft_metrics,
)
def nft(
    batch: DecoupledBatch,
    *,
    beta: Annotated[
        float, positive
    ] = 1.0,  # extrapolation from the old policy; published: 1, or 0.1 for OCR
    # Advantage at which an image counts as perfect, or as worthless.
    advantage_clip: Annotated[float, positive] = 5.0,
) -> Tensor:
    """c [r l+ + (1 - r) l-] / beta, c the advantage clip (DiffusionNFT, arXiv:2509.16117).

    l = <(x0_hat - x0)^2> / <|x0_hat - x0|> of v+ = v_old + beta (v - v_old), a good picture's, and
    of v- = v_old - beta (v - v_old), a bad one's; r in [0, 1] says how good it is. At v = v_old the
    gradient is that of c (2r - 1) l, whatever beta.
    """
    wanted = optimality(batch.advantages, advantage_clip=advantage_clip)
    step = beta * (batch.error - batch.old_error)
    good, bad = (
        normalised_x0_error(batch.old_error + side * step, batch.sigma) for side in (1, -1)
    )
    return advantage_clip / beta * (wanted * good + (1 - wanted) * bad)


def normalised_x0_error(error: Tensor, sigma: Tensor) -> Tensor:
    """<(x0_hat - x0)^2> / <|x0_hat - x0|>, the denominator a constant: [B, T]"""
    of_x0 = sigma[..., None] * error
    return energy(of_x0) / size(of_x0)


def beyond_reference(batch: DecoupledBatch) -> Tensor:
    """<e^2> - <e_ref^2>: how much worse than the frozen reference, [B, T]."""
    return energy(batch.error) - energy(batch.ref_error)


def beyond_average(batch: DecoupledBatch) -> Tensor:
    """<e^2> - <e_fast^2>: how much worse than the fast average of the policy, [B, T]."""
    return energy(batch.error) - energy(batch.fast_error)


def group_score(rows: Summary, *, beta: float) -> Tensor:
    """S of each row's group: beta times the mean over its rows of A (how much worse). [B, T]

    Below 0 if the policy fits good pictures better than the other one does, and bad ones worse.
    """
    return beta * group_mean(rows.advantages * rows.value, rows.group, rows.mask)


def has_gone_far(batch: DecoupledBatch, *, clip_low: float, clip_high: float) -> Tensor:
    """[B, T] bool, True where rho = exp(<e_fast^2> - <e^2>) left its band the way A pulls."""
    rho = ratio_of(-energy(batch.error), -energy(batch.fast_error))
    good = batch.advantages > 0
    return torch.where(good, rho > 1 + clip_high, rho < 1 - clip_low)


def dgpo_metrics(
    batch: DecoupledBatch, statistics: Tensor, *, clip_low: float, clip_high: float
) -> dict[str, Metric]:
    """The mean S, the objective of the paper, and the share of errors without gradient.

    `statistics`: [B, T], S of each row's group.
    """
    values = {
        "group_score": statistics,
        "group_weight": statistics.sigmoid(),
        "group_loss": softplus(statistics),
        "clip_frac": has_gone_far(batch, clip_low=clip_low, clip_high=clip_high),
    }
    return {f"actor/{name}": masked_mean(x, batch.mask) for name, x in values.items()}


# Groups as preferences, against the frozen reference (DGPO)
@register_policy_loss(
    reads={"ref_error", "fast_error"},
    on_errors=True,
    units={"beta": "none", "clip_low": "none", "clip_high": "none"},
    zero_at_zero_advantage=True,
    batch_statistics=group_score,
    summary=beyond_reference,
    metrics=dgpo_metrics,
)
def dgpo(
    batch: DecoupledBatch,
    statistics: Tensor,
    *,
    # Factor of the preference, per mean squared velocity error; published: 100, PickScore 10.
    beta: Annotated[float, positive] = 100.0,
    # A bad image with exp(fast average's error - own error) < 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 0.01,
    # A good image with exp(fast average's error - own error) > 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 0.01,
) -> Tensor:
    """sigmoid(S) A <e^2>, S of the row's group a constant (DGPO, arXiv:2510.08425).

    Its gradient is 1 / beta of that of the mean over groups of softplus(S); its value is not an
    objective. Errors keep their value but no gradient once the policy left the band around the fast
    average. The rows of a group must share their noise levels, or S would compare different levels.
    Shape: [B, T].
    """
    own = energy(batch.error)
    silent = has_gone_far(batch, clip_low=clip_low, clip_high=clip_high)
    return statistics.sigmoid() * batch.advantages * torch.where(silent, own.detach(), own)


# Groups as preferences, against the policy's own fast average (DGPO without a reference)
@register_policy_loss(
    reads={"fast_error"},
    on_errors=True,
    units={"beta": "none", "clip_low": "none", "clip_high": "none"},
    zero_at_zero_advantage=True,
    batch_statistics=group_score,
    summary=beyond_average,
    metrics=dgpo_metrics,
)
def dgpo_fast(
    batch: DecoupledBatch,
    statistics: Tensor,
    *,
    # Factor of the preference, per unit of a mean squared velocity error.
    beta: Annotated[float, positive] = 2000.0,
    # A bad image with exp(fast average's error - own error) < 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 1e-5,
    # A good image with exp(fast average's error - own error) > 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 1e-5,
) -> Tensor:
    """`dgpo` against the fast average instead of the reference, which saves its forward pass.

    Shape: [B, T]. Source: DGPO without a reference, arXiv:2510.08425.
    """
    return dgpo(batch, statistics, beta=beta, clip_low=clip_low, clip_high=clip_high)
