"""Variance components of a mean over seeds: the noise of seeds, and that of their prompts.

Y[seed, prompt] = mean + seed + prompt + rest, all three random; the rest is the interaction of seed
and prompt and the noise of sampling. Every moment is the unbiased one of the two-way analysis of
variance (Searle, Casella, McCulloch, Variance Components, 1992); negative variances become 0.
Sources (kinds of prompts, difficulties) are no part of the noise: another evaluation set would
have as many of each, so prompts are compared within their source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.statistics.intervals import LEVEL, ROUNDING, quantile

SMALL = 0.5  # of the standard error by seeds: prompts then widen an interval by 1/8


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Variances of a mean over seeds, or of a difference of two means, by source of noise."""

    mean: float
    n_prompts: float  # prompts of one seed
    own_prompts: bool  # each seed had its own prompts, so `on_these` includes them
    on_these: float | None  # on these prompts; None: one seed
    seeds: float | None  # of the seeds proper
    prompts: float  # from the choice of prompts, and from the answers to them
    added: float  # to `on_these` by another set of as many prompts
    df: float  # degrees of freedom, of on_these + added

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean over all seeds and all prompts of these sources."""
        if self.on_these is None or not self.has_spread:
            return None
        half = quantile(LEVEL, self.df) * math.sqrt(self.on_these + self.added)
        return self.mean - half, self.mean + half

    @property
    def has_spread(self) -> bool:
        """Whether anything differs by more than rounding error."""
        return (self.on_these or 0) + self.prompts > ROUNDING**2

    @property
    def enough(self) -> int | None:
        """Prompts per seed that make their noise small; None if seeds do not differ."""
        if not self.seeds:
            return None
        return math.ceil(self.n_prompts * self.prompts / (SMALL**2 * self.seeds))

    @property
    def by_prompts(self) -> bool | None:
        """Whether prompts are the larger noise; None for one seed, or if all agree."""
        return self.prompts > self.seeds if self.seeds is not None and self.has_spread else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """Sums of squares of seeds that had the same prompts: [n, P]."""

    means: NDArray  # [n] of the seeds
    effects: NDArray  # [P] prompt effects within their source, averaged over seeds
    rest: float  # residual mean square: variance of one cell
    df: int  # P minus the number of sources

    @property
    def spread(self) -> float:
        """Variance of a seed's mean on these prompts."""
        return float(self.means.var(ddof=1))

    @property
    def seeds(self) -> float:
        """Variance of the seed effect, estimated from these prompts."""
        return max(0.0, self.spread - self.rest / len(self.effects))


def measure_squares(y: NDArray, sources: Sequence[str]) -> Squares:
    """The sums of squares of y: [n, P] with n > 1 and some source with two prompts."""
    within = center_prompts(y, sources)
    effects = within.mean(0)
    df = y.shape[1] - len(set(sources))
    rest = float(((within - effects) ** 2).sum()) / ((len(y) - 1) * df)
    return Squares(means=y.mean(1), effects=effects, rest=rest, df=df)


def center_prompts(y: NDArray, sources: Sequence[str]) -> NDArray:
    """[..., P] minus its mean over the prompts of each source."""
    _, kind = np.unique(np.asarray(sources), return_inverse=True)
    member = np.eye(kind.max() + 1)[kind]  # [P, sources]
    return y - (y @ member / member.sum(0)) @ member.T


def estimate_shared(y: NDArray, sources: Sequence[str]) -> VarianceComponents:
    """Components if all seeds had the same prompts: [n, P] scores or paired differences."""
    found = measure_squares(y, sources)
    return _combine([found], found.effects, mean=float(y.mean()))


def estimate_unpaired(a: NDArray, b: NDArray, sources: Sequence[str]) -> VarianceComponents:
    """Components of A - B for unrelated seeds with the same prompts: [n, P] and [m, P]."""
    one, other = measure_squares(a, sources), measure_squares(b, sources)
    return _combine([one, other], one.effects - other.effects, mean=float(a.mean() - b.mean()))


def _combine(sides: Sequence[Squares], effects: NDArray, *, mean: float) -> VarianceComponents:
    asked, df = len(effects), sides[0].df
    here = [side.spread / len(side.means) for side in sides]
    rest = [side.rest / len(side.means) / asked for side in sides]
    # The mean of a prompt over seeds varies by the prompt effect and by the averaged rest.
    seen = float((effects**2).sum()) / df / asked
    added = max(0.0, seen - sum(rest))
    terms = [(v, len(side.means) - 1) for v, side in zip(here, sides, strict=True)]
    if added > 0:
        terms += [(seen, df)]
        terms += [(v, (len(s.means) - 1) * df) for v, s in zip(rest, sides, strict=True)]
    return VarianceComponents(
        mean=mean,
        n_prompts=asked,
        own_prompts=False,
        on_these=sum(here),
        seeds=sum(side.seeds / len(side.means) for side in sides),
        prompts=added + sum(rest),
        added=added,
        df=satterthwaite(sum(here) + added, terms),
    )


def satterthwaite(total: float, terms: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum or difference of mean squares (value, df)."""
    uncertain = sum(value**2 / df for value, df in terms)
    return total**2 / uncertain if uncertain > 0 else math.inf


def estimate_own(seeds: Sequence[NDArray], sources: Sequence[Sequence[str]]) -> VarianceComponents:
    """Components if each seed had its own prompts, or for one seed: [P] scores and sources of each.

    The spread over seeds then includes the noise of another evaluation set.
    """
    sums = [float((center_prompts(y, s) ** 2).sum()) for y, s in zip(seeds, sources, strict=True)]
    df = sum(len(y) - len(set(s)) for y, s in zip(seeds, sources, strict=True))
    means, n = np.array([y.mean() for y in seeds]), len(seeds)
    of_seed = sum(sums) / df * float(np.mean([1 / len(y) for y in seeds]))
    spread = float(means.var(ddof=1)) if n > 1 else None
    return VarianceComponents(
        mean=float(means.mean()),
        n_prompts=float(np.mean([len(y) for y in seeds])),
        own_prompts=True,
        on_these=None if spread is None else spread / n,
        seeds=None if spread is None else max(0.0, spread - of_seed) / n,
        prompts=of_seed / n,
        added=0.0,
        df=n - 1,
    )


def subtract_unrelated(a: VarianceComponents, b: VarianceComponents) -> VarianceComponents:
    """Components of A - B if neither seeds nor prompts are shared."""
    alone = a.on_these is None or b.on_these is None
    terms = [] if alone else [(one.on_these + one.added, one.df) for one in (a, b)]
    return VarianceComponents(
        mean=a.mean - b.mean,
        n_prompts=(a.n_prompts + b.n_prompts) / 2,
        own_prompts=a.own_prompts and b.own_prompts,
        on_these=None if alone else a.on_these + b.on_these,
        seeds=None if alone else a.seeds + b.seeds,
        prompts=a.prompts + b.prompts,
        added=a.added + b.added,
        df=satterthwaite(sum(value for value, _ in terms), terms),
    )
