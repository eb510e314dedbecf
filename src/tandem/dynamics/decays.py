"""Decays of moving averages of weights: (count, *, numbers) -> share kept, in [0, 1].

average <- decay average + (1 - decay) live, in float32: in bfloat16 small steps round to 0.
count is the number of previous updates or iterations, 0 at the first. A decay of 0 copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from tandem.contracts import at_least, fraction, positive, register_ema_decay

Decay = Callable[[int], float]
Fraction = Annotated[float, fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaSchedule:
    """The schedule of a moving average of the live weights."""

    decay: Decay  # share of the average that an update keeps, by count
    # What renews the average: an update of the optimizer, an iteration, or never by itself.
    every: Literal["update", "iteration", "never"] = "update"
    counts: Literal["update", "iteration"] = "update"  # unit that the decay counts


# A weight average with a constant decay
@register_ema_decay
def constant(
    count: int,
    *,
    decay: Fraction = 0.995,  # share of the average that an update keeps
) -> float:
    """`decay` at every count: the share of the average that an update keeps."""
    return decay


# A weight average with decay (1 + n) / (warmup + n) at update n, at most decay
@register_ema_decay
def power(
    count: int,
    *,
    decay: Fraction = 0.995,  # largest share of the average that an update keeps
    warmup: Annotated[float, positive] = 10,  # the decay at update n is (1 + n) / (warmup + n)
) -> float:
    """(1 + count) / (warmup + count), at most `decay`."""
    return min(decay, (1 + count) / (warmup + count))


# A weight average whose decay rises linearly from start to decay
@register_ema_decay
def linear(
    count: int,
    *,
    decay: Fraction = 0.995,  # last and largest share of the average that an update keeps
    start: Fraction = 0.0,  # first share of the average that an update keeps
    warmup: Annotated[int, positive] = 100,  # updates in which the decay rises
) -> float:
    """Linear from `start` to `decay` in `warmup` updates."""
    return start + (decay - start) * min(count / warmup, 1)


# A weight average whose decay is start up to update `flat`, then rises by slope per update (NFT)
@register_ema_decay
def piecewise_linear(
    count: int,
    *,
    decay: Fraction = 0.995,  # largest share of the average that an update keeps
    start: Fraction = 0.0,  # share that the first updates keep
    flat: Annotated[int, at_least(0)] = 50,  # updates before the decay rises
    slope: Annotated[float, at_least(0)] = 0.001,  # rise of the decay per update after that
) -> float:
    """`start` up to count = flat, then `slope` more per update, at most `decay`.

    DiffusionNFT and CRD call the numbers start-of-ramp, value, slope, end: flat, start, slope,
    decay.
    """
    return min(start + max(0, count - flat) * slope, decay)


# A weight average whose decay rises along half a cosine
@register_ema_decay
def cosine(
    count: int,
    *,
    decay: Fraction = 0.995,  # last and largest share of the average that an update keeps
    start: Fraction = 0.0,  # first share of the average that an update keeps
    length: Annotated[int, positive] = 1000,  # updates in which the decay rises
) -> float:
    """From `start` to `decay` along half a cosine in `length` updates."""
    return start + (decay - start) * (1 - math.cos(math.pi * min(count / length, 1))) / 2


# A weight average whose decay rises linearly, then along half a cosine
@register_ema_decay(rising=(("warmup", "length"),))
def warmup_cosine(
    count: int,
    *,
    decay: Fraction = 0.995,  # last and largest share, reached after `length` updates
    start: Fraction = 0.0,  # share at the end of the warm-up, which begins at 0
    warmup: Annotated[int, positive] = 100,  # updates in which the decay rises to `start`
    length: Annotated[int, positive] = 1000,  # updates in which the decay rises, with the warm-up
) -> float:
    """Linear from 0 to `start` in `warmup` updates, then `cosine` in the rest of `length`."""
    if count < warmup:
        return start * count / warmup
    return cosine(count - warmup, decay=decay, start=start, length=length - warmup)
