"""Losses of a few-step generator and of the score that follows it: (MatchingBatch, *, numbers) ->
[B, T].

The generator is led from what a second network, the fake score, takes for its pictures to what the
frozen reference takes for pictures; the fake score is a denoiser of the generator's own pictures.
"""

from __future__ import annotations

import math
from typing import Annotated

from torch import Tensor

from tandem.contracts import at_least, positive
from tandem.types import MatchingBatch

FLOOR = 1e-6  # of the distance that a direction is divided by
MOST = math.log(20.0)  # of the log of an importance weight, either way
SNR_MOST = 5.0


def distance_to_real(batch: MatchingBatch) -> Tensor:
    """max(<|x0 - real|>, 1e-6), detached: [B, T]"""
    return (batch.x0.detach() - batch.real_x0).abs().mean(-1).clamp(min=FLOOR)


def dmd2(batch: MatchingBatch) -> Tensor:
    """1/2 <(x0 - target)^2>, target = x0 - (fake - real) / n, detached, n = <|x0 - real|>: its
    gradient is the direction from real to fake, at the length of a relative error.

    Shape: [B, T]. Source: DMD2, arXiv:2405.14867, in the space of x0.
    """
    direction = (batch.fake_x0 - batch.real_x0) / distance_to_real(batch)[..., None]
    target = (batch.x0 - direction.nan_to_num(0.0)).detach()
    return 0.5 * (batch.x0 - target).square().mean(-1)


def tdm(batch: MatchingBatch, *, huber: Annotated[float, at_least(0)] = 1e-3) -> Tensor:
    """<sqrt(d^2 + c^2) - c> / n, d = x0 - target, target = x0 + real - fake, detached, c = `huber`;
    with c = 0 it is 1/2 <d^2> / n.

    Shape: [B, T]. Source: TDM, arXiv:2503.06674.
    """
    target = (batch.x0 + batch.real_x0 - batch.fake_x0).detach()
    away = batch.x0 - target
    size = 0.5 * away.square() if huber == 0 else (away.square() + huber**2).sqrt() - huber
    return size.mean(-1) / distance_to_real(batch)


def fake_velocity(batch: MatchingBatch) -> Tensor:
    """<(v_fake - v)^2>, v the velocity of the generator's pictures: flow matching (DMD2).

    Shape: [B, T].
    """
    return batch.fake_error.square().mean(-1)


def fake_x0(batch: MatchingBatch, *, snr_max: Annotated[float, positive] = SNR_MOST) -> Tensor:
    """w min(SNR, `snr_max`) <(x0_fake - x0)^2>, w the importance of the query's noise (TDM).

    SNR = (1 - sigma)^2 / sigma^2. Shape: [B, T].
    """
    snr = ((1 - batch.sigma) / batch.sigma).square().clamp(max=snr_max)
    error = batch.sigma.square() * batch.fake_error.square().mean(-1)
    return batch.importance * snr * error


def continue_noise(
    own: Tensor, fresh: Tensor, sigma: Tensor, sigma_mid: Tensor
) -> tuple[Tensor, Tensor]:
    """Noise of level sigma that goes on from the one left at sigma_mid, and its importance weight
    against noise that is all fresh.

    own: the noise that the generator implies; own and fresh [N, D], levels [N], sigma_mid < sigma.
    -> [N, D] of variance 1, [N]. Source: TDM's reverse conditioning.
    """
    kept = (1 - sigma) / (1 - sigma_mid) * sigma_mid
    added = (sigma.square() - kept.square()).sqrt()
    mixed = (kept[:, None] * own + added[:, None] * fresh) / sigma[:, None]
    log_weight = 0.5 * (fresh.square().mean(-1) - mixed.square().mean(-1))
    return mixed, log_weight.clamp(-MOST, MOST).exp()
