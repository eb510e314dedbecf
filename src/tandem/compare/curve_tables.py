"""The tables of learning curves: area, time to threshold, final level, pass@k."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tandem.compare.curve_summaries import CurveSummary, summarise_curves
from tandem.compare.scores import Scored, bounds_of, rank
from tandem.compare.statistics.curves import FEWEST_FOR_MEDIAN, Saturation, Unfit
from tandem.compare.statistics.intervals import estimate
from tandem.compare.table import Table
from tandem.compare.texts import format_interval, format_number

TRIES = re.compile(r"eval/pass@(\d+)")


def table_curves(
    variants: Sequence[Scored], metric: str, axis: str, asked: float | None = None
) -> Table:
    """`asked`: the threshold; None: derived from the runs."""
    ordered = rank(variants)
    tasks = dict.fromkeys(one.variant.task for one in ordered)
    courses = [
        course
        for task in tasks
        for course in summarise_curves(
            [one for one in ordered if one.variant.task == task], metric, axis, asked
        )
    ]
    words = axis.replace("_", " ")
    return Table(
        name="curves",
        title=f"{metric}: curves over {words}",
        columns=(
            *("variant", "n", "area", "95 % of area"),
            *("threshold", f"{words} to threshold", "95 % of median", "seeds that reach it"),
            *("fitted end", "fitted half time", "unexplained variance"),
        ),
        rows=[_row(one) for one in courses],
        notes=_notes(courses, words),
    )


def _row(one: CurveSummary) -> tuple[str, ...]:
    n, height, spread = "0", "-", "-"
    if one.area is not None:
        own = one.area
        n, height, spread = str(own.n), format_number(own.mean), format_interval(own.low, own.high)
    median, edges, share = "-", "-", "-"
    if one.reaching is not None:
        own = one.reaching
        median, share = format_place(own.median), f"{own.reached} of {own.n}"
        edges = "-" if own.low is None else f"[{format_place(own.low)}, {format_place(own.high)}]"
    fitted = ("-", "-", "-")
    if isinstance(one.fit, Saturation):
        fitted = (
            format_number(one.fit.end),
            format_place(one.fit.half),
            f"{100 * one.fit.unexplained:.1f} %",
        )
    at = format_number(one.threshold.value)
    return one.name, n, height, spread, at, median, edges, share, *fitted


def format_place(value: float) -> str:
    """A point of an axis."""
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _notes(courses: Sequence[CurveSummary], axis: str) -> list[str]:
    origins = dict.fromkeys(one.threshold.origin for one in courses)
    notes = [
        f"Area: mean of the curve over {axis}, for each seed up to the end of the shortest run; "
        "a seed that died continues with its last score.",
        f"Threshold: {'; '.join(origins)}. {axis} to threshold: median over seeds; a seed that "
        f"never reaches it is ranked last. The interval needs {FEWEST_FOR_MEDIAN} seeds.",
        "Fitted end and half time: parameters of end - (end - start) 2^(-x / half) for the mean "
        f"curve, which is drawn at the mean {axis} of the seeds.",
    ]
    unfit = [f"{one.name}: {one.fit.why}" for one in courses if isinstance(one.fit, Unfit)]
    return [*notes, f"No fit: {'; '.join(unfit)}."] if unfit else notes


def table_tries(variants: Sequence[Scored]) -> Table | None:
    """pass@k at the start and the end: new abilities, or known answers given more often.

    None: no run has pass@k.
    """
    ordered = rank(variants)
    runs = [run for one in ordered for run in one.variant.runs]
    names = {match for run in runs for name in run.names() if (match := TRIES.fullmatch(name))}
    tries = sorted({int(match[1]) for match in names})
    rows = [row for one in ordered for k in tries if (row := _row_tries(one, k)) is not None]
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
        notes=_list_measured_once(ordered, tries),
    )


def _row_tries(one: Scored, k: int) -> tuple[str, ...] | None:
    metric = f"eval/pass@{k}"
    curves = [run.curve(metric).y for run in one.variant.runs]
    ends = np.array([(y[0], y[-1]) for y in curves if len(y)])
    if not len(ends):
        return None
    of_ends = [estimate(x, bounds_of(metric)) for x in ends.T]
    found = [*of_ends, estimate(ends[:, 1] - ends[:, 0])]
    cells = [
        cell for e in found for cell in (format_number(e.mean), format_interval(e.low, e.high))
    ]
    return one.variant.name, str(k), str(len(ends)), *cells


def _list_measured_once(variants: Sequence[Scored], tries: Sequence[int]) -> list[str]:
    """A note on seeds with one measurement, whose end is their start."""
    said = []
    for one in variants:
        ends = {run.seed: [run.curve(f"eval/pass@{k}") for k in tries] for run in one.variant.runs}
        seeds = [seed for seed, own in ends.items() if any(len(curve.y) == 1 for curve in own)]
        said += [f"{one.variant.name}: seed {', '.join(map(str, seeds))}"] if seeds else []
    return [f"Measured only once, so start and end agree: {'; '.join(said)}."] if said else []
