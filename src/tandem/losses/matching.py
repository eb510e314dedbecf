"""Losses of a few-step generator and of the networks trained beside it, [B, T].

The generator moves from the prediction of a second network, the fake score, to that of the frozen
reference; the fake score is a denoiser trained on the generator's pictures. A third network may be
a surrogate of the reward, trained on group preferences.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, between, declare, positive, register_policy_loss
from tandem.dynamics.regression import energy
from tandem.losses.decoupled import beyond_reference, dgpo_metrics, group_score, has_gone_far
from tandem.metrics import Metric, masked_mean
from tandem.types import DecoupledBatch, MatchingBatch

FLOOR = 1e-6  # smallest distance used as a divisor


def distance_between(x0: Tensor, other: Tensor) -> Tensor:
    """max(<|x0 - other|>, 1e-6), detached: [..., D] -> [...]"""
    return (x0.detach() - other).abs().mean(-1).clamp(min=FLOOR)


def matching_metrics(batch: MatchingBatch) -> dict[str, Metric]:
    """The distance of pictures to predictions of the reference, and between both scores."""
    fake = batch.networks["fake"].x0
    values = {
        "distance_to_real": distance_between(batch.x0, batch.real_x0),
        "score_gap": energy(fake - batch.real_x0),
        "x0_std": batch.x0.detach().std(-1),
    }
    return {f"actor/{name}": masked_mean(x, batch.mask) for name, x in values.items()}


# A pull along the difference of the reference's score and the fake one, normalised (DMD2)
@register_policy_loss(
    reads={"real_x0"}, networks={"fake"}, matches=True, taught=True, metrics=matching_metrics
)
def dmd2(batch: MatchingBatch) -> Tensor:
    """1/2 <(x0 - target)^2>, target = x0 - (fake - real) / n, detached, n = <|x0 - real|>: its
    gradient is the direction from real to fake, at the length of a relative error.

    Shape: [B, T]. Source: DMD2, arXiv:2405.14867, in the space of x0.
    """
    scale = distance_between(batch.x0, batch.real_x0)
    direction = (batch.networks["fake"].x0 - batch.real_x0) / scale[..., None]
    return 0.5 * energy(batch.x0 - (batch.x0 - direction).detach())


# The direction of DMD2 over all states of the path, as a Huber distance (TDM)
@register_policy_loss(
    reads={"real_x0"},
    networks={"fake"},
    matches=True,
    taught=True,
    units={"huber": "none"},
    metrics=matching_metrics,
)
def tdm(
    batch: MatchingBatch,
    *,
    # Size below which a difference counts squared; 0: always squared.
    huber: Annotated[float, at_least(0)] = 1e-3,
) -> Tensor:
    """<sqrt(d^2 + c^2) - c> / n, d = x0 - target, target = x0 + real - fake, detached, c = `huber`;
    with c = 0 it is 1/2 <d^2> / n.

    Shape: [B, T]. Source: TDM, arXiv:2503.06674.
    """
    away = batch.x0 - (batch.x0 + batch.real_x0 - batch.networks["fake"].x0).detach()
    size = 0.5 * away.square() if huber == 0 else (away.square() + huber**2).sqrt() - huber
    return size.mean(-1) / distance_between(batch.x0, batch.real_x0)


# TDM, also pulled to the prediction of the reward surrogate (TDM-R1)
@register_policy_loss(
    reads={"real_x0", "of_prompt"},
    networks={"fake", "surrogate"},
    matches=True,
    units={
        "huber": "none",
        "prompt_coef": "none",
        "prompt_scale": "none",
        "reward_coef": "none",
    },
    metrics=matching_metrics,
)
def tdm_r1(
    batch: MatchingBatch,
    *,
    # Size below which a difference of the TDM part counts squared; 0: always squared.
    huber: Annotated[float, at_least(0)] = 1e-3,
    # Coefficient of the pull along the guidance direction of the prompt.
    prompt_coef: Annotated[float, at_least(0)] = 0.3,
    prompt_scale: Annotated[float, at_least(0)] = 3.5,  # factor of that direction
    # Coefficient of the pull to the surrogate's prediction.
    reward_coef: Annotated[float, at_least(0)] = 0.7,
) -> Tensor:
    """tdm + `prompt_coef` drawn(`prompt_scale` of_prompt) / <|x0 - real|>
    + `reward_coef` drawn(surrogate - real) / <|x0 - surrogate|>, drawn(d) = 1/2 <(x0 - target)^2>,
    target = x0 + d, detached.

    Shape: [B, T]. Source: TDM-R1, arXiv:2603.07700, by Flow-Factory's code.
    """
    preferred = batch.networks["surrogate"].x0
    prompt = matching_error(batch.x0, prompt_scale * batch.of_prompt, batch.real_x0)
    reward = matching_error(batch.x0, preferred - batch.real_x0, preferred)
    return tdm(batch, huber=huber) + prompt_coef * prompt + reward_coef * reward


def matching_error(x0: Tensor, direction: Tensor, other: Tensor) -> Tensor:
    """1/2 <(x0 - target)^2> / <|x0 - other|>, target = x0 + direction, detached.

    Shape: [..., D] -> [...].
    """
    return 0.5 * energy(x0 - (x0 + direction).detach()) / distance_between(x0, other)


# Losses of the networks beside the generator, which see only their own errors.


@declare(on_errors=True, taught=True)
def fake_velocity(batch: DecoupledBatch) -> Tensor:
    """<(v_fake - v)^2>, v the velocity of the generator's pictures: flow matching (DMD2).

    Shape: [B, T]. Source: DMD2, arXiv:2405.14867.
    """
    return energy(batch.error)


@declare(on_errors=True, taught=True, units={"snr_max": "none"})
def fake_x0(
    batch: DecoupledBatch,
    *,
    # Largest signal-to-noise ratio that weights an error.
    snr_max: Annotated[float, positive] = 5.0,
) -> Tensor:
    """w min(SNR, `snr_max`) <(x0_fake - x0)^2>, w the importance of the query's noise (TDM).

    SNR = (1 - sigma)^2 / sigma^2. Shape: [B, T]. Source: TDM, arXiv:2503.06674.
    """
    snr = ((1 - batch.sigma) / batch.sigma).square().clamp(max=snr_max)
    return batch.importance * snr * batch.sigma.square() * energy(batch.error)


def has_run_away(batch: DecoupledBatch, *, farthest: float) -> Tensor:
    """[B, T] bool, True where the squared distance to the reference's error is above `farthest` in
    the direction that A pulls."""
    beyond = beyond_reference(batch).detach()
    improved = torch.where(batch.advantages > 0, beyond < 0, beyond > 0)
    return improved & (beyond.square() > farthest)


@declare(
    reads={"ref_error", "fast_error"},
    on_errors=True,
    units=dict.fromkeys(("beta", "clip_low", "clip_high", "pull", "farthest"), "none"),
    batch_statistics=group_score,
    summary=beyond_reference,
    metrics=dgpo_metrics,
)
def surrogate(
    batch: DecoupledBatch,
    statistics: Tensor,
    *,
    # Factor of the preference, per unit of a mean squared velocity error.
    beta: Annotated[float, positive] = 10.0,
    # A bad image with exp(fast average's error - own error) < 1 - clip_low has no gradient.
    clip_low: Annotated[float, between(0, 1)] = 1e-3,
    # A good image with exp(fast average's error - own error) > 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 1e-3,
    pull: Annotated[float, at_least(0)] = 1e-3,  # weight of the distance to the reference
    # Squared difference from the reference's squared error beyond which an error has no gradient.
    farthest: Annotated[float, at_least(0)] = 0.05,
) -> Tensor:
    """(t / T) [sigmoid(S) A <e^2> + `pull` (<e^2> - <e_ref^2>)^2]: the preference of `dgpo` at the
    queries of the generator's T predicted pictures, of which the last was scored.

    An error keeps its value but no gradient once the surrogate left the band around its own fast
    average, or is beyond `farthest`. Shape: [B, T]. Source: TDM-R1, arXiv:2603.07700, by
    Flow-Factory's code, whose weights are (t + 1) / T.
    """
    own = energy(batch.error)
    silent = has_gone_far(batch, clip_low=clip_low, clip_high=clip_high)
    silent = silent | has_run_away(batch, farthest=farthest)
    preferred = statistics.sigmoid() * batch.advantages * torch.where(silent, own.detach(), own)
    steps = batch.mask.cumsum(1) / batch.mask.sum(1, keepdim=True).clamp(min=1)
    return steps * (preferred + pull * beyond_reference(batch).square())
