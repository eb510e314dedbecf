"""What learning curves say: area, samples to a threshold, saturation, and where a new run belongs.

A curve is a score at each of P points of an axis (iterations, samples, tokens, seconds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from tandem.compare.intervals import is_rounding

FEWEST_FOR_BAND = 10
FEWEST_POINTS = 6  # of a curve, for three numbers to be fitted
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Where one new run stays at all points at once, with the given confidence."""

    x: NDArray  # [P]
    mean: NDArray
    low: NDArray  # NaN: the seeds agree there, and say nothing of how far another one may be
    high: NDArray
    n: int

    def leaves(self, curve: ArrayLike) -> NDArray:
        """[P] bool: where a run is outside; NaN, a run that ended before, is outside."""
        curve = np.asarray(curve, dtype=np.float64)
        return np.isnan(curve) | (curve < self.low) | (curve > self.high)


def prediction_band(x: ArrayLike, curves: ArrayLike, *, level: float = LEVEL) -> Band | None:
    """mean ± t(n - 1, 1 - (1 - level) / 2P) s sqrt(1 + 1/n), Bonferroni over P points.

    curves: [n, P], one of each seed. None: fewer than ten, no band yet. Points at which all seeds
    agree are no part of it, nor of P: the next seed may be the first that differs.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(curves, dtype=np.float64)
    n = len(y)
    if n < FEWEST_FOR_BAND:
        return None
    spread = y.std(0, ddof=1)
    apart = ~np.array([is_rounding(s, column) for s, column in zip(spread, y.T, strict=True)])
    edge = stats.t.ppf(1 - (1 - level) / (2 * max(apart.sum(), 1)), n - 1)
    half = np.where(apart, edge * spread * math.sqrt(1 + 1 / n), np.nan)
    mean = y.mean(0)
    return Band(x=x, mean=mean, low=mean - half, high=mean + half, n=n)


def area(x: ArrayLike, y: ArrayLike) -> float:
    """Mean height of a curve over its axis, by trapezia; of one point its height."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])


def reached(x: ArrayLike, y: ArrayLike, threshold: float) -> float | None:
    """Where a curve first stands at the threshold, between points by a straight line; None: never.

    What is reached and lost again was reached.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    above = np.flatnonzero(y >= threshold)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(x[0])
    share = (threshold - y[i - 1]) / (y[i] - y[i - 1])
    return float(x[i - 1] + share * (x[i] - x[i - 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """end - (end - start) * 2^(-x / half): where a curve is going, and how fast."""

    start: float
    end: float
    half: float  # of the axis, until half of what is left is gained
    unexplained: float  # share of the variance that is left over


def saturation(x: ArrayLike, y: ArrayLike) -> Saturation | None:
    """The least-squares fit; None where a curve does not allow one.

    It must have six points, bend, explain four fifths of the variance, and have run for one half
    time at least: a straight line says nothing of its end.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(x) < FEWEST_POINTS or np.ptp(y) == 0:
        return None
    x0, width = x[0], np.ptp(x)

    def line(half: float) -> tuple[NDArray, float]:
        decay = np.exp2(-(x - x0) / half)
        columns = np.stack([1 - decay, decay], 1)
        ends, *_ = np.linalg.lstsq(columns, y, rcond=None)
        return ends, float(((columns @ ends - y) ** 2).sum())

    # Two of three numbers are linear, so the third one is all that is searched.
    found = optimize.minimize_scalar(
        lambda power: line(width * 2**power)[1], bounds=(-6, 4), method="bounded"
    )
    half = width * 2**found.x
    (end, start), left = line(half)
    unexplained = left / float(((y - y.mean()) ** 2).sum())
    if half > width or unexplained > 0.2:
        return None
    return Saturation(start=float(start), end=float(end), half=float(half), unexplained=unexplained)
