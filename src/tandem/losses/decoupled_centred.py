"""Centred reward distillation: implicit rewards fitted to given ones, both centred, [B, T].

The implicit reward of a policy is known up to a constant per prompt, which centring removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from tandem.advantages.group import exp_below_largest, group_mean
from tandem.contracts import (
    positive,
    register_centre,
    register_fit,
    register_policy_loss,
    register_tilt,
)
from tandem.contracts.inner_parts import ask_inner
from tandem.dynamics.regression import energy
from tandem.losses.decoupled import old_deviation, size
from tandem.losses.kl import optimality
from tandem.metrics import Metric, correlation, masked_mean
from tandem.types import DecoupledBatch, Summary

Pool = Callable[[Summary], Tensor]  # rows of one id have one centre: [B] int64
Tilt = Callable[[Tensor], Tensor]  # rewards [B, T] -> log weights of N centres, [N, B, T]
Fit = Callable[[Tensor, Tensor], Tensor]  # (implied, given), both centred -> loss, of one shape
# Relative, in float32: the centre of equal rewards differs from them in the last bits, and so do
# errors of one velocity between forward passes of few and of many rows.
ROUNDING = 1e-6


# Rewards are compared with those of the same prompt (default)
@register_centre("prompt")
def of_prompt(rows: Summary) -> Tensor:
    """The samples of a prompt, in which its constant cancels.

    Shape: [B] ids. Source: Centred Reward Distillation.
    """
    return rows.group


# Rewards are compared with those of all prompts of an update (Flow-Factory)
@register_centre("update")
def of_update(rows: Summary) -> Tensor:
    """All samples of an update, as in Flow-Factory; constants of prompts then remain.

    Shape: [B] ids, all alike. Source: Flow-Factory's code of CRD.
    """
    return torch.zeros_like(rows.group)


# All samples count equally in a centre (default)
@register_tilt
def uniform(rewards: Tensor) -> Tensor:
    """One centre in which all samples count equally.

    Shape: [B, T] -> [1, B, T]. Source: Centred Reward Distillation.
    """
    return torch.zeros_like(rewards)[None]


# One centre among the best samples and one among the worst, by a softmax of the reward
@register_tilt
def two_sided(
    rewards: Tensor,
    *,
    # Temperature of the softmax of rewards in [0, 1].
    temperature: Annotated[float, positive] = 0.5,
) -> Tensor:
    """A centre among the best, weights softmax(R / temperature), and one among the worst.

    Shape: [B, T] -> [2, B, T]. Source: Centred Reward Distillation.
    """
    return torch.stack([rewards, -rewards]) / temperature


# The squared difference of implicit and given reward (default)
@register_fit("mse")
def squared(implied: Tensor, given: Tensor) -> Tensor:
    """(implied - given)^2, of any one shape [...]. Source: Centred Reward Distillation."""
    return (implied - given).square()


# The cross entropy of the sigmoids of implicit and given reward
@register_fit("bce")
def cross_entropy(implied: Tensor, given: Tensor) -> Tensor:
    """The cross entropy of sigmoid(implied) against sigmoid(given).

    In nats, of tensors of any one shape [...]. Source: Centred Reward Distillation.
    """
    return binary_cross_entropy_with_logits(implied, given.sigmoid(), reduction="none")


def denoising_loss(error: Tensor, *, adaptive: bool) -> Tensor:
    """l = <e^2>, over <|e|> if `adaptive`: [B, T]"""
    return energy(error) / size(error) if adaptive else energy(error)


def implicit_reward(batch: DecoupledBatch, *, adaptive: bool) -> Tensor:
    """l_old - l, the implicit reward. [B, T]"""
    own, old = (
        denoising_loss(error, adaptive=adaptive) for error in (batch.error, batch.old_error)
    )
    return old - own


def centres(rows: Summary, *, advantage_clip: float, centre: Pool, tilt: Tilt) -> Tensor:
    """The centres of implicit and of given rewards, for N weightings: [B, T, N, 2]"""
    given = optimality(rows.advantages, advantage_clip=advantage_clip)
    pool = ask_inner(centre, rows, shape=rows.group.shape, axes="[B]")
    tilts = ask_inner(tilt, given, shape=given.shape, axes="[N, B, T]", lead=1)
    by_weight = [
        [group_mean(x, pool, weight) for x in (rows.value, given)]
        for weight in (exp_below_largest(logits, pool, rows.mask) for logits in tilts)
    ]
    return torch.stack([torch.stack(pair, -1) for pair in by_weight], -2)


def crd_metrics(
    batch: DecoupledBatch, statistics: Tensor, *, advantage_clip: float, adaptive: bool
) -> dict[str, Metric]:
    """The correlation of implicit and given rewards, both minus the mean of their centres, and how
    often their signs agree if both differ from their centres by more than rounding. A policy equal
    to the old one has no implicit reward yet.

    `statistics`: [B, T, N, 2], the centres.
    """
    given = optimality(batch.advantages, advantage_clip=advantage_clip) - statistics[..., 1].mean(
        -1
    )
    reward = implicit_reward(batch, adaptive=adaptive)
    implied = reward - statistics[..., 0].mean(-1)
    rounding = ROUNDING * denoising_loss(batch.old_error, adaptive=adaptive)
    differs = batch.mask & (given.abs() > ROUNDING) & (implied.abs() > rounding)
    return {
        "actor/implicit_reward": masked_mean(reward, batch.mask),
        "actor/reward_correlation": correlation(implied, given, batch.mask),
        "actor/reward_agreement": masked_mean(implied * given > 0, differs),
        "actor/old_deviation": old_deviation(batch),
    }


# A row without advantage still has a reward: one half.
@register_policy_loss(
    reads={"old_error"},
    on_errors=True,
    units={"beta": "none", "advantage_clip": "none"},
    batch_statistics=centres,
    summary=implicit_reward,
    metrics=crd_metrics,
)
def crd(
    batch: DecoupledBatch,
    statistics: Tensor,
    *,
    # Factor of the implicit reward, a difference of velocity errors.
    beta: Annotated[float, positive] = 1.0,
    # Advantage at which an image counts as perfect, or as worthless.
    advantage_clip: Annotated[float, positive] = 5.0,
    adaptive: bool = True,  # true: divides the mean squared error by its mean magnitude
    centre: Pool = of_prompt,  # samples whose mean is subtracted: those of a prompt, or all
    tilt: Tilt = uniform,  # weights of the samples in that mean
    fit: Fit = squared,  # distance between implicit and given rewards
) -> Tensor:
    """c / beta fit(beta (r - its centre), R - its centre), c the advantage clip; the mean over
    centres.

    r is the implicit reward and R in [0, 1] the given one. Centres carry no gradient. The rows of a
    group must share their noise levels, since errors vary more over levels than over samples.
    Source: Centred Reward Distillation, by Flow-Factory's code.
    """
    implied = implicit_reward(batch, adaptive=adaptive)[..., None] - statistics[..., 0]
    given = optimality(batch.advantages, advantage_clip=advantage_clip)[..., None]
    sides = beta * implied, given - statistics[..., 1]
    value = ask_inner(fit, *sides, shape=implied.shape, axes="[B, T, N]").mean(-1)
    return torch.where(batch.mask, advantage_clip / beta * value, 0)
