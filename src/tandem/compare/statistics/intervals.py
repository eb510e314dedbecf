"""Confidence intervals and tests for means and differences of a few seeds.

The unit of replication is the training seed: every number here counts seeds, none counts prompts.
All intervals are two-sided. An interval or a p-value that cannot be had (one seed, no spread where
one is divided by) is None, never 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

LEVEL = 0.95
POWER = 0.8
MOST_SEEDS = 1000  # beyond it a difference is of no interest
ROUNDING = 1e-7  # of scores: a spread below it is that of their last digits, hence none


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds, and where the mean over all seeds lies with the given confidence."""

    mean: float
    low: float | None  # None: one seed, or seeds that all agree and show no spread
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of A less mean of B."""

    mean: float
    low: float | None
    high: float | None
    p: float | None  # of no difference at all, two-sided
    spread: float | None  # of one difference: what the power of more seeds is reckoned with
    pairs: int | None = None  # None: the two were not paired
    correlation: float | None = None  # of the pairs


def estimate(scores: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """mean ± t(n - 1) s / sqrt(n), Student's interval, at every n above 1."""
    x = np.asarray(scores, dtype=np.float64)
    mean, spread = float(x.mean()), math.sqrt(variance(x)) if len(x) > 1 else 0.0
    if is_rounding(spread, x):
        return Estimate(mean=mean, low=None, high=None, n=len(x))
    half = quantile(level, len(x) - 1) * spread / math.sqrt(len(x))
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=len(x))


def welch(a: ArrayLike, b: ArrayLike, *, level: float = LEVEL) -> Difference:
    """Of two groups of seeds that have nothing in common; their spreads may differ."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Difference(mean=mean, low=None, high=None, p=None, spread=None)
    of_a, of_b = variance(a), variance(b)
    parts, spread = (of_a / len(a), of_b / len(b)), math.sqrt((of_a + of_b) / 2)
    if is_rounding(spread, a, b):
        return Difference(mean=mean, low=None, high=None, p=None, spread=0.0)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    return _judged(mean, error, freedom, level, spread=spread)


def paired(a: ArrayLike, b: ArrayLike, *, level: float = LEVEL) -> Difference:
    """Of runs that share seed and warm start, pair by pair."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} scores cannot be paired with {len(b)}")
    gap = a - b
    if len(gap) < 2:
        return Difference(
            mean=float(gap.mean()), low=None, high=None, p=None, spread=None, pairs=len(gap)
        )
    mean, spread = float(gap.mean()), math.sqrt(variance(gap))
    if is_rounding(spread, a, b):
        return Difference(mean=mean, low=None, high=None, p=None, spread=0.0, pairs=len(gap))
    found = _judged(mean, spread / math.sqrt(len(gap)), len(gap) - 1, level, spread=spread)
    return replace(found, pairs=len(gap), correlation=correlation(a, b))


def variance(x: NDArray) -> float:
    """The unbiased one."""
    gap = x - x.mean()
    return float(gap @ gap) / (len(x) - 1)


def correlation(a: NDArray, b: NDArray) -> float | None:
    """Pearson's; None: one of the two does not vary."""
    of_a, of_b = a - a.mean(), b - b.mean()
    spreads = math.sqrt(of_a @ of_a / len(a)), math.sqrt(of_b @ of_b / len(b))
    if is_rounding(spreads[0], a) or is_rounding(spreads[1], b):
        return None
    return float(of_a @ of_b) / len(a) / spreads[0] / spreads[1]


def quantile(level: float, freedom: float) -> float:
    """Half the width of Student's interval, in standard errors."""
    # Straight from the library that `stats.t` asks too: a table has hundreds of pairs.
    return float(special.stdtrit(freedom, (1 + level) / 2))


def is_rounding(spread: float, *scores: NDArray) -> bool:
    """Whether scores differ by nothing but their last digits."""
    return bool(spread <= ROUNDING * max(np.abs(x).max() for x in scores))


def _judged(
    mean: float, error: float, freedom: float, level: float, *, spread: float
) -> Difference:
    half = quantile(level, freedom) * error
    p = 2 * special.stdtr(freedom, -abs(mean) / error)
    return Difference(
        mean=mean, low=float(mean - half), high=float(mean + half), p=float(p), spread=spread
    )


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Adjusted so that the chance of any false claim among all of them is below each (Holm 1979).

    What has no p-value makes no claim, and counts among them: whether seeds happened to agree is no
    reason to judge the others more mildly.
    """
    known = sorted((value, place) for place, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, value * (len(p) - rank)))
        adjusted[place] = largest
    return adjusted


def seeds_needed(found: Difference, *, level: float = LEVEL, power: float = POWER) -> int | None:
    """Seeds of each side for a test at `level` to find this difference with such a power.

    Of the noncentral t, with the spread as it was measured, so a guess when seeds are few. None: no
    spread is known, there is no difference, or it would take more than a thousand.
    """
    if not found.spread or found.mean == 0:
        return None
    effect, sides = abs(found.mean) / found.spread, 1 if found.pairs is not None else 2
    counts = range(2, MOST_SEEDS + 1)  # more seeds have more power
    place = bisect_left(counts, power, key=lambda n: _power(effect, n, sides, level))
    return counts[place] if place < len(counts) else None


def _power(effect: float, n: int, sides: int, level: float) -> float:
    """Of a t test with n seeds on each of one or two sides; effect in units of the spread."""
    freedom, shift = sides * (n - 1), effect * math.sqrt(n / sides)
    edge = quantile(level, freedom)
    return float(stats.nct.sf(edge, freedom, shift) + stats.nct.cdf(-edge, freedom, shift))
