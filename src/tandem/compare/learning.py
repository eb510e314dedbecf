"""Learning curves of all seeds of a variant on one axis, and their mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.intervals import estimate
from tandem.compare.runs import Run

MOST_POINTS = 200  # of a curve that is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Seeds at the same iterations. A run that died goes on with the score it had."""

    x: NDArray  # [P] on the axis, the mean over the runs that came furthest
    y: NDArray  # [n, P]
    lived: NDArray  # [n, P] bool: False where a score is carried on


def learning(runs: Sequence[Run], metric: str, axis: str = "iterations") -> Learning | None:
    """At the iterations at which every run that came so far has the number; None: at no one.

    A run without any number of the metric is left out: it has no score to go on with.
    """
    known = [found for run in runs if (found := _known(run, metric, axis)) is not None]
    if not known:
        return None
    every = np.unique(np.concatenate([at for at, _, _ in known]))
    shared = np.all([np.isin(every, at) | (every > at[-1]) for at, _, _ in known], axis=0)
    grid = np.array(thinned(every[shared].tolist()), dtype=np.int64)
    if not len(grid):
        return None
    # The last place of a run stands for all after it: its last score is carried on.
    places = [np.searchsorted(at, np.minimum(grid, at[-1])) for at, _, _ in known]
    furthest = max(at[-1] for at, _, _ in known)  # a mean over whoever lives would run backwards
    x = [x[own] for (at, x, _), own in zip(known, places, strict=True) if at[-1] == furthest]
    y = [y[own] for (_, _, y), own in zip(known, places, strict=True)]
    lived = [grid <= at[-1] for at, _, _ in known]
    return Learning(x=np.mean(x, axis=0), y=np.array(y), lived=np.array(lived))


def _known(run: Run, metric: str, axis: str) -> tuple[NDArray, NDArray, NDArray] | None:
    """Iterations, x and y of a run; None where it has no number, or some lines lack the axis: none
    is safer than a shifted one."""
    at, along = run.curve(metric), run.curve(metric, axis)
    if not len(at.x) or len(along.x) != len(at.x):
        return None
    return at.x, along.x, at.y


def thinned(grid: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """At most so many of them at even distances, the first and the last too."""
    if len(grid) <= most:
        return list(grid)
    chosen = np.linspace(0, len(grid) - 1, most).round().astype(int)
    return [grid[i] for i in chosen]


def mean_line(curves: Learning) -> list[tuple[float, float, float | None, float | None]]:
    """(x, mean, low, high) at every point: Student's interval over seeds."""
    found = [estimate(column) for column in curves.y.T]
    return [(x, e.mean, e.low, e.high) for x, e in zip(curves.x.tolist(), found, strict=True)]
