"""Learning curves of all seeds of a variant on one axis, and their mean with its interval.

The mean is taken iteration by iteration, whatever the axis. On tokens or seconds the seeds have
different axis values at an iteration, and the mean is drawn at their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.statistics.intervals import estimate
from tandem.record.reading.runs import Run

MOST_POINTS = 200  # of a curve that is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedCurves:
    """Seeds at the same iterations. A seed that ended early continues with its last score, at the
    pace of the others, so that the mean axis value never decreases."""

    runs: Sequence[Run]  # [n]
    x: NDArray  # [n, P] on the axis
    y: NDArray  # [n, P]
    lived: NDArray  # [n, P] bool: False where a score is carried on

    @property
    def middle(self) -> NDArray:
        """[P] mean axis values of the seeds."""
        return self.x.mean(0)


def align_curves(
    runs: Sequence[Run], metric: str, axis: str = "iterations"
) -> AlignedCurves | None:
    """The curves at the iterations for which all runs that got there have a value; None: none.

    A run without any value of the metric is left out: it has no score to continue with.
    """
    known = [run for run in runs if len(run.where(metric))]
    wheres = [run.where(metric) for run in known]
    grid = find_shared(wheres)
    if not len(grid):
        return None
    # A run that ended continues with its last score.
    at = [np.minimum(grid, where[-1]) for where in wheres]
    places = np.array([run.places(axis, own) for run, own in zip(known, at, strict=True)])
    counted = np.isfinite(places).all(1)  # a run without a value of the axis is left out
    if not counted.any():
        return None
    y = np.array([run.values(metric, own) for run, own in zip(known, at, strict=True)])[counted]
    lived = np.array([grid <= where[-1] for where in wheres])[counted]
    came = lived.any(0)  # points that only excluded runs reached
    y, lived = y[:, came], lived[:, came]
    x = carry_on(places[counted][:, came], lived)
    own = [run for run, has in zip(known, counted, strict=True) if has]
    return AlignedCurves(runs=own, x=x, y=y, lived=lived)


def carry_on(places: NDArray, lived: NDArray) -> NDArray:
    """[n, P]: after its end a seed advances by the mean step of those still running."""
    steps = np.diff(places, axis=1, prepend=0)  # the first step is the first value
    pace = np.where(lived, steps, 0).sum(0) / lived.sum(0)
    return np.where(lived, places, np.cumsum(np.where(lived, steps, pace), axis=1))


def match_runs(curves: AlignedCurves, along: AlignedCurves | None) -> AlignedCurves | None:
    """The curves on another axis; None if not all of these runs recorded it."""
    return along if along is not None and np.array_equal(curves.y, along.y) else None


def find_shared(wheres: Sequence[NDArray]) -> NDArray:
    """The iterations that all runs that got there have, thinned."""
    if not wheres:
        return np.array([], dtype=np.int64)
    every = np.unique(np.concatenate(wheres))
    common = np.all([np.isin(every, at) | (every > at[-1]) for at in wheres], axis=0)
    return np.array(thin(every[common].tolist()), dtype=np.int64)


def thin(grid: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """At most `most` of them at even distances, including the first and the last."""
    if len(grid) <= most:
        return list(grid)
    chosen = np.linspace(0, len(grid) - 1, most).round().astype(int)
    return [grid[i] for i in chosen]


def draw_mean(
    curves: AlignedCurves, within: tuple[float, float]
) -> list[tuple[float, float, float | None, float | None]]:
    """(x, mean, low, high) at every point: Student's interval over seeds, within these bounds."""
    found = [estimate(column, within) for column in curves.y.T]
    places = curves.middle.tolist()
    return [(x, e.mean, e.low, e.high) for x, e in zip(places, found, strict=True)]
