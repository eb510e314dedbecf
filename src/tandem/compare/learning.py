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
    values = [_by_iteration(run, metric) for run in runs]
    places = [_by_iteration(run, metric, axis) for run in runs]
    known = [(y, x) for y, x in zip(values, places, strict=True) if y and x]
    if not known:
        return None
    shared = sorted(
        i for i in {i for y, _ in known for i in y} if all(i in y or i > max(y) for y, _ in known)
    )
    grid = thinned(shared)
    if not grid:
        return None
    furthest = max(max(own) for own, _ in known)  # a mean over whoever lives would run backwards
    x = [float(np.mean([at[i] for own, at in known if max(own) == furthest])) for i in grid]
    y = [[own[i] if i in own else own[max(own)] for i in grid] for own, _ in known]
    lived = [[i in own for i in grid] for own, _ in known]
    return Learning(x=np.array(x), y=np.array(y), lived=np.array(lived))


def _by_iteration(run: Run, metric: str, axis: str | None = None) -> dict[int, float]:
    """The metric at each iteration, or, where an axis is named, the axis there."""
    at = run.curve(metric, "iterations")
    if axis is None:
        return dict(zip(at.x.astype(int).tolist(), at.y.tolist(), strict=True))
    along = run.curve(metric, axis)
    if len(along.x) != len(at.x):  # some lines lack the axis: none is safer than a shifted one
        return {}
    return dict(zip(at.x.astype(int).tolist(), along.x.tolist(), strict=True))


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
