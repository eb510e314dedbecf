"""Statistics over many tasks: interquartile means, profiles, probability of improvement.

Source: Agarwal et al., "Deep RL at the edge of the statistical precipice", arXiv:2108.13264.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from tandem.compare.statistics.intervals import LEVEL, is_rounding

RESAMPLES = 2000
FEWEST_TASKS, FEWEST_SCORES = 4, 20  # with fewer an interquartile mean says less than the scores
FEWEST_OF_TASK = 3  # seeds: with one or two the bootstrap spreads too little
FEWEST_SEEDS = 10  # below it a share of wins has no useful interval
NEXT = 1e-9  # relative distance of a bracket from the share
SEED = 0  # of the bootstrap: the same scores give the same report


@dataclass(frozen=True, slots=True, kw_only=True)
class WinCount:
    """How often a run of A scores above a run of B; ties are half a win."""

    wins: float
    games: int  # n pairs of one seed, or n * m pairs of unpaired runs
    low: float | None  # of the share; None: fewer than ten seeds on a side
    high: float | None

    @property
    def share(self) -> float:
        return self.wins / self.games


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """A number over tasks with its interval."""

    value: float
    low: float | None  # None: all resamples agree, so the spread is unknown
    high: float | None
    tasks: int
    scores: int


def count_paired_wins(a: ArrayLike, b: ArrayLike) -> WinCount:
    """P(A > B at one seed) over n pairs; from ten seeds on with Wilson's interval."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    won, n = float((a > b).sum() + 0.5 * (a == b).sum()), len(a)
    if n < FEWEST_SEEDS:
        return WinCount(wins=won, games=n, low=None, high=None)
    share, edge = won / n, float(special.ndtri((1 + LEVEL) / 2))
    middle, more = share + edge**2 / (2 * n), 1 + edge**2 / n
    half = edge * math.sqrt(share * (1 - share) / n + (edge / (2 * n)) ** 2)
    return WinCount(wins=won, games=n, low=(middle - half) / more, high=(middle + half) / more)


def count_wins(a: ArrayLike, b: ArrayLike) -> WinCount:
    """P(A > B) over all n * m pairs of runs; from ten seeds on with an interval.

    The interval is method 5 of Newcombe, Statistics in Medicine 25:559 (2006), which has a width
    even if A wins all games.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    won = float((a[:, None] > b).sum() + 0.5 * (a[:, None] == b).sum())
    games = len(a) * len(b)
    if min(len(a), len(b)) < FEWEST_SEEDS:
        return WinCount(wins=won, games=games, low=None, high=None)
    from scipy import optimize

    share, edge = won / games, float(special.ndtri((1 + LEVEL) / 2))
    more = (len(a) + len(b)) / 2 - 1

    def beyond(theta: float) -> float:
        each = theta * (1 - theta) / games
        spread = each * (1 + more * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        return (share - theta) ** 2 - edge**2 * spread

    # At 0 and 1 the share itself is a root, but not the wanted one.
    low = 0.0 if share == 0 else optimize.brentq(beyond, 0.0, share - NEXT * share)
    high = 1.0 if share == 1 else optimize.brentq(beyond, share + NEXT * (1 - share), 1.0)
    return WinCount(wins=won, games=games, low=float(low), high=float(high))


def too_few(by_task: Mapping[str, Sequence[float]]) -> str:
    """Why the scores of one variant have no interquartile mean; "" if they have one."""
    count = sum(map(len, by_task.values()))
    if len(by_task) < FEWEST_TASKS or count < FEWEST_SCORES:
        return f"{len(by_task)} tasks and {count} scores; needs {FEWEST_TASKS} and {FEWEST_SCORES}"
    task, fewest = min(((task, len(own)) for task, own in by_task.items()), key=lambda x: x[1])
    if fewest == 1:
        return f"{task} has one seed, hence no spread"
    if fewest < FEWEST_OF_TASK:
        return f"{task} has {fewest} seeds, needs {FEWEST_OF_TASK}"
    return ""


def interquartile_mean(by_task: Mapping[str, Sequence[float]]) -> Aggregate:
    """Mean of the middle half of all scores, in which each task weighs alike whatever its number of
    seeds, with a bootstrap that draws seeds within each task."""
    scores, weights = pool_tasks(by_task.values())
    drawn = resample(by_task, iqm)
    low, high = _middle(drawn)
    certain = is_rounding(float(drawn.std()), drawn)
    return Aggregate(
        value=float(iqm(scores, weights)),
        low=None if certain else float(low),
        high=None if certain else float(high),
        tasks=len(by_task),
        scores=len(scores),
    )


def pool_tasks(tasks: Iterable[ArrayLike]) -> tuple[NDArray, NDArray]:
    """[..., n] of each task -> all scores [..., N] and their weights [N], 1 in total of a task."""
    own = [np.asarray(scores, dtype=np.float64) for scores in tasks]
    weights = [np.full(x.shape[-1], 1 / x.shape[-1]) for x in own]
    return np.concatenate(own, axis=-1), np.concatenate(weights)


def iqm(scores: NDArray, weights: NDArray) -> NDArray:
    """[..., N], [N] -> [...]: the mean of the middle half of the weight of each line. A score at
    the edge of this half counts by its part inside."""
    order = scores.argsort(-1)
    upto = weights[order].cumsum(-1)
    quarter = upto[..., -1:] / 4
    inside = np.diff(upto.clip(quarter, 3 * quarter), axis=-1, prepend=quarter)
    return (np.take_along_axis(scores, order, -1) * inside).sum(-1) / inside.sum(-1)


def resample(
    by_task: Mapping[str, Sequence[float]], statistic: Callable[[NDArray, NDArray], NDArray]
) -> NDArray:
    """The statistic, ([..., N], [N]) -> [..., any], of each resample: [RESAMPLES, any].

    For a task with n runs, n - 1 are drawn with replacement, and together they weigh what the n do:
    n draws would underestimate the variance by (n - 1) / n (Rao and Wu, JASA 83:231, 1988). So
    every task needs two runs or more.
    """
    random = np.random.default_rng(SEED)
    tasks = [np.asarray(scores, dtype=np.float64) for scores in by_task.values()]
    drawn = [x[random.integers(len(x), size=(RESAMPLES, len(x) - 1))] for x in tasks]
    return statistic(*pool_tasks(drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Share of runs that score above each threshold, over all tasks, which weigh alike."""

    thresholds: NDArray
    share: NDArray
    low: NDArray
    high: NDArray


def performance_profile(by_task: Mapping[str, Sequence[float]], thresholds: ArrayLike) -> Profile:
    thresholds = np.asarray(thresholds, dtype=np.float64)

    def above(scores: NDArray, weights: NDArray) -> NDArray:
        shares = weights / weights.sum()
        return np.stack([(scores > edge) @ shares for edge in thresholds], axis=-1)

    share = above(*pool_tasks(by_task.values()))
    low, high = _middle(resample(by_task, above))
    return Profile(thresholds=thresholds, share=share, low=low, high=high)


def _middle(drawn: ArrayLike) -> tuple[NDArray, NDArray]:
    """The ends of the central 95 % interval of resamples, along the first axis."""
    edges = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low, high = np.quantile(np.asarray(drawn), edges, axis=0)
    return low, high
