"""Tables of learning curves: area, time to threshold, final level, pass@k."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.compare.comparison import Scored, is_score, is_share
from tandem.compare.learning_curves import Learning, learning
from tandem.compare.statistics.curves import (
    FEWEST_FOR_MEDIAN,
    Reaching,
    Saturation,
    Unfit,
    area,
    cut,
    reached,
    reaching,
    saturation,
)
from tandem.compare.statistics.intervals import Estimate, estimate
from tandem.compare.table import Table
from tandem.compare.tables import interval, number
from tandem.record.reading.runs import Run

SHARE, ANY = (0.0, 1.0), (-math.inf, math.inf)
TRIES = re.compile(r"eval/pass@(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    value: float | None  # None: nothing rose, or nobody knows what is better
    origin: str  # how it came about, as a sentence ends


def threshold(variants: Sequence[Scored], metric: str, asked: float | None) -> Threshold:
    """What was asked for; else halfway from where runs start to the best variant's last mean.

    Raises ValueError for one that no score can come to.
    """
    if asked is not None and is_share(metric) and not 0 <= asked <= 1:
        raise ValueError(f"threshold={asked:g}: {metric} lies between 0 and 1")
    if asked is not None:
        return Threshold(value=asked, origin="as it was asked for")
    if not is_score(metric):
        return Threshold(value=None, origin="none, give threshold=NUMBER")
    curves = [run.curve(metric).y for one in variants for run in one.variant.runs]
    start = float(np.mean([y[0] for y in curves if len(y)]))
    best = max(one.estimate.mean for one in variants)
    if best <= start:
        return Threshold(value=None, origin="none, for no variant ends above where runs start")
    origin = f"halfway from where runs start, {number(start)}, to the best last mean"
    return Threshold(value=(start + best) / 2, origin=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The curves of one variant."""

    name: str
    threshold: Threshold
    area: Estimate | None  # None: nothing was recorded on this axis
    reaching: Reaching | None  # None: without a threshold
    fit: Saturation | Unfit


def of_curves(
    variants: Sequence[Scored], metric: str, axis: str, asked: float | None = None
) -> Table:
    """`asked`: the threshold; None: one that suits the runs."""
    ordered = sorted(variants, key=lambda one: (one.variant.task, -one.estimate.mean))
    tasks = dict.fromkeys(one.variant.task for one in ordered)
    courses = [
        course
        for task in tasks
        for course in _courses(
            [one for one in ordered if one.variant.task == task], metric, axis, asked
        )
    ]
    words = axis.replace("_", " ")
    return Table(
        name="curves",
        title=f"{metric}: curves over {words}",
        columns=(
            *("variant", "n", "area", "95 % of area"),
            *("threshold", f"{words} to it", "95 % of median", "reached"),
            *("end", "half time", "unexplained"),
        ),
        rows=[_row(one) for one in courses],
        notes=_notes(courses, words),
    )


def _courses(
    ordered: Sequence[Scored], metric: str, axis: str, asked: float | None
) -> list[Course]:
    """Of the variants of one task."""
    curves = [learning(one.variant.runs, metric, axis) for one in ordered]
    end = _shortest(ordered, curves)
    at, within = threshold(ordered, metric, asked), SHARE if is_share(metric) else ANY
    return [
        Course(
            name=one.variant.name,
            threshold=at,
            area=_area(found, end),
            reaching=_reaching(one.variant.runs, metric, axis, at),
            fit=_fit(found, within),
        )
        for one, found in zip(ordered, curves, strict=True)
    ]


def _shortest(variants: Sequence[Scored], curves: Sequence[Learning | None]) -> float:
    """Where the first run ends, of those that came as far as their variant did: all have numbers up
    to there. A variant of which no run is whole would end the others with it, so it counts only
    among its like."""
    ends = [
        (not any(run.finished for run in one.variant.runs), found.x[found.lived[:, -1], -1].min())
        for one, found in zip(variants, curves, strict=True)
        if found is not None
    ]
    return min(ends)[1] if ends else 0.0


def _area(curves: Learning | None, end: float) -> Estimate | None:
    if curves is None:
        return None
    return estimate([area(*cut(x, y, end)) for x, y in zip(curves.x, curves.y, strict=True)])


def _reaching(runs: Sequence[Run], metric: str, axis: str, at: Threshold) -> Reaching | None:
    """Of all runs: one that died before its first score never got there either."""
    curves = [run.curve(metric, axis) for run in runs]
    if at.value is None or not any(len(curve.x) for curve in curves):
        return None
    return reaching([reached(curve.x, curve.y, at.value) for curve in curves])


def _fit(curves: Learning | None, within: tuple[float, float]) -> Saturation | Unfit:
    if curves is None:
        return Unfit(why="nothing was recorded on this axis")
    return saturation(curves.middle, curves.y.mean(0), within=within)


def _row(one: Course) -> tuple[str, ...]:
    n, height, spread = "0", "-", "-"
    if one.area is not None:
        own = one.area
        n, height, spread = str(own.n), number(own.mean), interval(own.low, own.high)
    median, edges, share = "-", "-", "-"
    if one.reaching is not None:
        own = one.reaching
        median, share = place(own.median), f"{own.reached} of {own.n}"
        edges = "-" if own.low is None else f"[{place(own.low)}, {place(own.high)}]"
    fitted = ("-", "-", "-")
    if isinstance(one.fit, Saturation):
        fitted = number(one.fit.end), place(one.fit.half), f"{100 * one.fit.unexplained:.1f} %"
    at = number(one.threshold.value)
    return one.name, n, height, spread, at, median, edges, share, *fitted


def place(value: float) -> str:
    """A point of an axis."""
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _notes(courses: Sequence[Course], axis: str) -> list[str]:
    origins = dict.fromkeys(one.threshold.origin for one in courses)
    notes = [
        f"Area: mean height over {axis}, each seed on its own, up to where the shortest run ends; "
        "one that died before goes on with the score it had.",
        f"Threshold: {'; '.join(origins)}. {axis} to it: median over seeds; one that never gets "
        f"there counts as the last. Its interval needs {FEWEST_FOR_MEDIAN} seeds.",
        "End and half time: end - (end - start) 2^(-x / half), fitted to the mean curve, "
        f"which stands at the mean {axis} of the seeds.",
    ]
    unfit = [f"{one.name}: {one.fit.why}" for one in courses if isinstance(one.fit, Unfit)]
    return [*notes, f"No fit: {'; '.join(unfit)}."] if unfit else notes


def of_tries(variants: Sequence[Scored]) -> Table | None:
    """pass@k at both ends: whether more was learned, or what was known is said more often.

    None: no run has any.
    """
    ordered = sorted(variants, key=lambda one: (one.variant.task, -one.estimate.mean))
    runs = [run for one in ordered for run in one.variant.runs]
    names = {match for run in runs for name in run.names() if (match := TRIES.fullmatch(name))}
    tries = sorted({int(match[1]) for match in names})
    rows = [row for one in ordered for k in tries if (row := _tried(one, k)) is not None]
    if not rows:
        return None
    return Table(
        name="pass_at",
        title="pass@k at the start and at the end: mean over seeds, Student's 95 % interval",
        columns=(
            "variant",
            "k",
            "n",
            "start",
            "95 %",
            "end",
            "95 % of end",
            "gain",
            "95 % of gain",
        ),
        rows=rows,
        notes=_stopped(ordered, tries),
    )


def _tried(one: Scored, k: int) -> tuple[str, ...] | None:
    curves = [run.curve(f"eval/pass@{k}").y for run in one.variant.runs]
    ends = np.array([(y[0], y[-1]) for y in curves if len(y)])
    if not len(ends):
        return None
    found = [estimate(x) for x in (*ends.T, ends[:, 1] - ends[:, 0])]
    cells = [cell for e in found for cell in (number(e.mean), interval(e.low, e.high))]
    return one.variant.name, str(k), str(len(ends)), *cells


def _stopped(variants: Sequence[Scored], tries: Sequence[int]) -> list[str]:
    """Runs with one measurement: of those its end is its start."""
    said = []
    for one in variants:
        ends = {run.seed: [run.curve(f"eval/pass@{k}") for k in tries] for run in one.variant.runs}
        seeds = [seed for seed, own in ends.items() if any(len(curve.y) == 1 for curve in own)]
        said += [f"{one.variant.name}: seed {', '.join(map(str, seeds))}"] if seeds else []
    return [f"Measured once only, so that the end is the start: {'; '.join(said)}."] if said else []
