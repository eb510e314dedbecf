"""Summaries of learning curves by variant: area, point of reaching a threshold, final level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.compare.learning_curves import AlignedCurves, align_curves
from tandem.compare.scores import Scored, bounds_of, is_score, is_share
from tandem.compare.statistics.curves import (
    Reaching,
    Saturation,
    Unfit,
    area,
    cut,
    find_crossing,
    reaching,
    saturation,
)
from tandem.compare.statistics.intervals import Estimate, estimate
from tandem.compare.texts import format_number
from tandem.record.reading.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    value: float | None  # None: nothing rose, or no direction is better
    origin: str  # how it was chosen, the end of a sentence


def choose_threshold(variants: Sequence[Scored], metric: str, asked: float | None) -> Threshold:
    """The value asked for, or halfway from the mean first score to the best last mean.

    Raises ValueError for a threshold that no score can reach.
    """
    if asked is not None and is_share(metric) and not 0 <= asked <= 1:
        raise ValueError(f"threshold={asked:g} is out of range: {metric} lies between 0 and 1")
    if asked is not None:
        return Threshold(value=asked, origin="as requested")
    if not is_score(metric):
        return Threshold(value=None, origin="none, set threshold=NUMBER")
    curves = [run.curve(metric).y for one in variants for run in one.variant.runs]
    start = float(np.mean([y[0] for y in curves if len(y)]))
    best = max(one.estimate.mean for one in variants)
    if best <= start:
        return Threshold(value=None, origin="none, as no variant ends above the first scores")
    origin = f"halfway from the mean first score, {format_number(start)}, to the best last mean"
    return Threshold(value=(start + best) / 2, origin=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSummary:
    """The curves of one variant."""

    name: str
    threshold: Threshold
    area: Estimate | None  # None: nothing was recorded on this axis
    reaching: Reaching | None  # None: without a threshold
    fit: Saturation | Unfit


def summarise_curves(
    ordered: Sequence[Scored], metric: str, axis: str, asked: float | None
) -> list[CurveSummary]:
    """The summaries of the variants of one task."""
    curves = [align_curves(one.variant.runs, metric, axis) for one in ordered]
    end = _find_end(ordered, curves)
    at, within = choose_threshold(ordered, metric, asked), bounds_of(metric)
    return [
        CurveSummary(
            name=one.variant.name,
            threshold=at,
            area=_estimate_area(found, end, within),
            reaching=_estimate_reaching(one.variant.runs, metric, axis, at),
            fit=_fit_curve(found, within),
        )
        for one, found in zip(ordered, curves, strict=True)
    ]


def _find_end(variants: Sequence[Scored], curves: Sequence[AlignedCurves | None]) -> float:
    """The end of the shortest run among those that got as far as their variant: up to there all
    have numbers. Variants without a finished run count only if no variant has one."""
    ends = [
        (
            not any(run.is_finished for run in one.variant.runs),
            found.x[found.lived[:, -1], -1].min(),
        )
        for one, found in zip(variants, curves, strict=True)
        if found is not None
    ]
    return min(ends)[1] if ends else 0.0


def _estimate_area(
    curves: AlignedCurves | None, end: float, within: tuple[float, float]
) -> Estimate | None:
    if curves is None:
        return None
    heights = [area(*cut(x, y, end)) for x, y in zip(curves.x, curves.y, strict=True)]
    return estimate(heights, within)


def _estimate_reaching(
    runs: Sequence[Run], metric: str, axis: str, at: Threshold
) -> Reaching | None:
    """Over all runs; one that died before its first score never reached the threshold."""
    curves = [run.curve(metric, axis) for run in runs]
    if at.value is None or not any(len(curve.x) for curve in curves):
        return None
    return reaching([find_crossing(curve.x, curve.y, at.value) for curve in curves])


def _fit_curve(curves: AlignedCurves | None, within: tuple[float, float]) -> Saturation | Unfit:
    if curves is None:
        return Unfit(why="nothing was recorded on this axis")
    return saturation(curves.middle, curves.y.mean(0), within=within)
