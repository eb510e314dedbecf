"""Statistics of learning curves: area, samples to a threshold, saturation, band membership.

A curve is a score at each of P points of an axis (iterations, samples, tokens, seconds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tandem.compare.statistics.intervals import LEVEL, is_rounding

FEWEST_FOR_BAND = 10
FEWEST_FOR_MEDIAN = 6  # seeds, for an interval at 95 %
FEWEST_POINTS = 6  # of a curve, to fit three parameters
LEFT_OVER = 0.2  # largest share of the variance that a fit may leave unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Limits that one new run stays within at all points at once."""

    x: NDArray  # [P]
    mean: NDArray
    low: NDArray  # NaN: all seeds agree there, so the spread is unknown
    high: NDArray
    n: int

    def leaves(self, curve: ArrayLike) -> NDArray:
        """[P] bool: points where the run is outside; NaN (the run ended earlier) is outside."""
        curve = np.asarray(curve, dtype=np.float64)
        return np.isnan(curve) | (curve < self.low) | (curve > self.high)


def prediction_band(x: ArrayLike, curves: ArrayLike) -> Band | None:
    """mean ± t(n - 1, 1 - (1 - LEVEL) / 2P) s sqrt(1 + 1/n), Bonferroni over P points.

    curves: [n, P], one per seed. None for fewer than ten seeds. Points at which all seeds agree are
    excluded and do not count in P: the next seed may be the first that differs.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(curves, dtype=np.float64)
    n = len(y)
    if n < FEWEST_FOR_BAND:
        return None
    spread = y.std(0, ddof=1)
    apart = ~np.array([is_rounding(s, column) for s, column in zip(spread, y.T, strict=True)])
    edge = special.stdtrit(n - 1, 1 - (1 - LEVEL) / (2 * max(apart.sum(), 1)))
    half = np.where(apart, edge * spread * math.sqrt(1 + 1 / n), np.nan)
    mean = y.mean(0)
    return Band(x=x, mean=mean, low=mean - half, high=mean + half, n=n)


def area(x: ArrayLike, y: ArrayLike) -> float:
    """Mean height of a curve over its axis (trapezoidal rule); the height of a single point."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])


def cut(x: ArrayLike, y: ArrayLike, end: float) -> tuple[NDArray, NDArray]:
    """The curve up to `end`, interpolated linearly between points."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    before = x < end
    return np.append(x[before], end), np.append(y[before], np.interp(end, x, y))


def find_crossing(x: ArrayLike, y: ArrayLike, threshold: float) -> float | None:
    """The first axis value at which a curve reaches the threshold, interpolated; None: never.

    Later values below the threshold do not matter.
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
class Reaching:
    """The median point at which seeds reach a threshold; seeds that never do rank last."""

    median: float  # axis value; inf: half of the seeds or more never do
    low: float | None  # None: fewer than six seeds
    high: float | None  # inf: possibly never
    reached: int
    n: int


def reaching(places: Sequence[float | None]) -> Reaching:
    """The median of `places`, one per seed (None: never), with an order-statistic interval.

    The median lies below the k-th smallest of n with the probability of fewer than k heads in n
    coin tosses; k is the largest for which it is at most (1 - LEVEL) / 2.
    """
    ordered = np.sort([math.inf if place is None else place for place in places])
    n = len(ordered)
    beyond = accumulate(math.comb(n, heads) for heads in range(n))  # of 2^n, of k = 1, 2, ...
    k = sum(count / 2**n <= (1 - LEVEL) / 2 for count in beyond)
    return Reaching(
        median=float(np.median(ordered)),
        low=float(ordered[k - 1]) if k else None,
        high=float(ordered[n - k]) if k else None,
        reached=int(np.isfinite(ordered).sum()),
        n=n,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """end - (end - start) * 2^(-x / half): the final value of a curve and the half time."""

    start: float
    end: float
    half: float  # distance on the axis in which half of the remainder is gained
    unexplained: float  # unexplained share of the variance


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """The reason why a curve has no fit."""

    why: str


def saturation(
    x: ArrayLike, y: ArrayLike, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Saturation | Unfit:
    """The least-squares fit with start and end `within`, or the reason for none.

    The curve must have six points, be curved, cover at least one half time, and be explained to
    four fifths of its variance: a straight line does not determine an end.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(x) < FEWEST_POINTS:
        return Unfit(why=f"{len(x)} points, needs {FEWEST_POINTS}")
    if np.ptp(y) == 0:
        return Unfit(why="it is flat")
    half = _best_half(x, y, within)
    (end, start), left = _ends(x, y, half, within)
    unexplained = left / float(((y - y.mean()) ** 2).sum())
    if half > np.ptp(x):
        return Unfit(why="it covers less than one half time")
    if unexplained > LEFT_OVER:
        return Unfit(why=f"{100 * unexplained:.0f} % of its variance is unexplained")
    if half < x[1] - x[0]:
        return Unfit(why="it saturates before the second point")
    return Saturation(start=start, end=end, half=half, unexplained=unexplained)


def _best_half(x: NDArray, y: NDArray, within: tuple[float, float]) -> float:
    """The half time of the best fit. The other two parameters are linear, so only this one is
    searched: first on a grid, as the error may have several minima, then near the best point."""
    from scipy import optimize  # half of what a comparison imports, and only fits need it

    def left(power: float) -> float:
        return _ends(x, y, np.ptp(x) * 2**power, within)[1]

    powers = np.linspace(-6, 4, 41)
    best = powers[np.argmin([left(power) for power in powers])]
    step = powers[1] - powers[0]
    found = optimize.minimize_scalar(left, bounds=(best - step, best + step), method="bounded")
    return float(np.ptp(x) * 2**found.x)


def _ends(
    x: NDArray, y: NDArray, half: float, within: tuple[float, float]
) -> tuple[tuple[float, float], float]:
    """The best (end, start) for this half time, and the residual sum of squares."""
    from scipy import optimize

    decay = np.exp2(-(x - x[0]) / half)
    columns = np.stack([1 - decay, decay], 1)
    ends = optimize.lsq_linear(columns, y, bounds=within).x
    return (float(ends[0]), float(ends[1])), float(((columns @ ends - y) ** 2).sum())
