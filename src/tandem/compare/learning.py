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
    known = [run for run in runs if len(run.where(metric))]
    wheres = [run.where(metric) for run in known]
    grid = shared(wheres)
    if not len(grid):
        return None
    # Its last place stands for all after it: a run goes on with the score it had.
    at = [np.minimum(grid, where[-1]) for where in wheres]
    places = np.array([run.places(axis, own) for run, own in zip(known, at, strict=True)])
    counted = np.isfinite(places).all(1)  # a run that lacks some of the axis is left out
    if not counted.any():
        return None
    y = np.array([run.values(metric, own) for run, own in zip(known, at, strict=True)])
    ends = np.array([where[-1] for where in wheres])
    furthest = counted & (ends == ends[counted].max())  # the mean of whoever lives would run back
    return Learning(
        x=places[furthest].mean(0), y=y[counted], lived=(grid <= ends[:, None])[counted]
    )


def shared(wheres: Sequence[NDArray]) -> NDArray:
    """The iterations that every one has that came so far, thinned."""
    if not wheres:
        return np.array([], dtype=np.int64)
    every = np.unique(np.concatenate(wheres))
    common = np.all([np.isin(every, at) | (every > at[-1]) for at in wheres], axis=0)
    return np.array(thinned(every[common].tolist()), dtype=np.int64)


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
