"""Confidence intervals and tests for means and differences of a few seeds.

The unit of replication is the training seed: every count here is of seeds, never of prompts. All
intervals are two-sided. An interval or p-value that cannot be computed (fewer than three seeds, no
spread) is None, never 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

ANY = (-math.inf, math.inf)  # bounds of a score that may be any number
LEVEL = 0.95  # of all intervals, unless several claims share it
POWER = 0.8
FEWEST = 3  # seeds: an interval from two extends 12.7 standard errors each way
MOST_SEEDS = 1000  # a difference that takes more is of no interest
ROUNDING = 1e-7  # relative to the scores: a smaller spread is rounding error


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds, with a confidence interval of the mean over all seeds."""

    mean: float
    low: float | None  # None: fewer than three seeds, or no spread
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of A minus mean of B."""

    mean: float
    error: float | None = None  # standard error of the mean; None: unknown
    df: float | None = None  # degrees of freedom of the error
    spread: float | None = None  # standard deviation of one difference; None: too few seeds
    spread_df: float | None = None  # degrees of freedom of the spread
    pairs: int | None = None  # None: not paired
    correlation: float | None = None  # of the pairs

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """mean ± t(df) error, Student's interval of this difference alone."""
        if self.error is None:
            return None
        half = quantile(level, self.df) * self.error
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float | None:
        """The two-sided p-value of the null hypothesis of no difference."""
        if self.error is None:
            return None
        return float(2 * special.stdtr(self.df, -abs(self.mean) / self.error))


def estimate(scores: ArrayLike, within: tuple[float, float] = ANY) -> Estimate:
    """mean ± t(n - 1) s / sqrt(n), Student's interval, from three seeds on; clipped to `within`,
    the known bounds of a score, beyond which no mean lies."""
    x = np.asarray(scores, dtype=np.float64)
    mean, spread = float(x.mean()), math.sqrt(variance(x)) if len(x) > 1 else 0.0
    if len(x) < FEWEST or is_rounding(spread, x):
        return Estimate(mean=mean, low=None, high=None, n=len(x))
    half = quantile(LEVEL, len(x) - 1) * spread / math.sqrt(len(x))
    low, high = np.clip([mean - half, mean + half], *within).tolist()
    return Estimate(mean=mean, low=low, high=high, n=len(x))


def welch(a: ArrayLike, b: ArrayLike) -> Difference:
    """The difference of two unrelated groups of seeds with unequal variances."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < FEWEST:
        return Difference(mean=mean)
    of_a, of_b = variance(a), variance(b)
    parts, spread = (of_a / len(a), of_b / len(b)), math.sqrt((of_a + of_b) / 2)
    if is_rounding(spread, a, b):
        return Difference(mean=mean, spread=0.0)
    df = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    return Difference(
        mean=mean,
        error=math.sqrt(sum(parts)),
        df=df,
        spread=spread,
        spread_df=(of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)),
    )


def paired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """The difference of runs paired by seed. Raises ValueError if lengths differ."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} scores cannot be paired with {len(b)}")
    gap, n = a - b, len(a)
    mean = float(gap.mean())
    if n < FEWEST:
        return Difference(mean=mean, pairs=n)
    spread = math.sqrt(variance(gap))
    if is_rounding(spread, a, b):
        return Difference(mean=mean, spread=0.0, pairs=n)
    return Difference(
        mean=mean,
        error=spread / math.sqrt(n),
        df=n - 1,
        spread=spread,
        spread_df=n - 1,
        pairs=n,
        correlation=correlation(a, b),
    )


def variance(x: NDArray) -> float:
    """The unbiased one."""
    gap = x - x.mean()
    return float(gap @ gap) / (len(x) - 1)


def correlation(a: NDArray, b: NDArray) -> float | None:
    """Pearson's correlation; None if one of the two does not vary."""
    of_a, of_b = a - a.mean(), b - b.mean()
    spreads = math.sqrt(of_a @ of_a / len(a)), math.sqrt(of_b @ of_b / len(b))
    if is_rounding(spreads[0], a) or is_rounding(spreads[1], b):
        return None
    return float(of_a @ of_b) / len(a) / spreads[0] / spreads[1]


def quantile(level: float, freedom: float) -> float:
    """Half the width of Student's interval, in standard errors."""
    # `stats.t` gives the same number, but importing it takes a third of a second.
    return float(special.stdtrit(freedom, (1 + level) / 2))


def is_rounding(spread: float, *scores: NDArray) -> bool:
    """Whether a spread is only rounding error of the scores."""
    return bool(spread <= ROUNDING * max(np.abs(x).max() for x in scores))


def bonferroni(p: Sequence[float | None]) -> list[float | None]:
    """min(1, m p) for each of m p-values, which bounds the chance of any false claim.

    A missing p-value makes no claim but counts in m: that seeds happen to agree is no reason to
    judge the others more mildly. An adjusted p is below alpha exactly if the interval at level
    1 - alpha / m excludes 0, and all m intervals hold at once with confidence 1 - alpha. Holm's
    test would claim slightly more, but its compatible intervals end at 0 for every claimed
    difference as long as one is undecided (Guilbaud, Biometrical Journal 50:678, 2008).
    """
    return [None if value is None else min(1.0, len(p) * value) for value in p]


def find_seeds_needed(
    effect: float, spread: float, *, paired: bool, level: float = LEVEL
) -> int | None:
    """Seeds per side for a test at `level` to detect a true difference with a power of 80 %.

    Uses the noncentral t. None: no difference, or more than a thousand seeds.
    """
    if effect == 0 or spread == 0:
        return None
    size, sides = abs(effect) / spread, 1 if paired else 2
    counts = range(FEWEST, MOST_SEEDS + 1)  # more seeds have more power
    place = bisect_left(counts, POWER, key=lambda n: _power(size, n, sides, level))
    return counts[place] if place < len(counts) else None


def bound_spread(spread: float, df: float) -> tuple[float, float]:
    """The interval of the standard deviation over all seeds: s sqrt(df / chi2(df)), if normal."""
    edges = (1 + LEVEL) / 2, (1 - LEVEL) / 2
    low, high = (spread * math.sqrt(df / special.chdtri(df, 1 - edge)) for edge in edges)
    return low, high


def _power(effect: float, n: int, sides: int, level: float) -> float:
    """The power of a t test with n seeds on each of one or two sides; effect in spreads, above 0.

    Without claims of the wrong sign: where power matters they are rarer than 1e-4.
    """
    freedom, shift = sides * (n - 1), effect * math.sqrt(n / sides)
    missed = special.nctdtr(freedom, shift, quantile(level, freedom))
    return 1 - float(np.nan_to_num(missed))  # SciPy has NaN for a far lower tail, which is 0
