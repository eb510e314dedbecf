"""The numbers of a page: what it draws and says, as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tandem.compare.bands import Judged, verdict
from tandem.compare.comparison import CAVEAT, SMALL, Pair, Scored
from tandem.compare.expected_bands import Expected, numbers
from tandem.compare.learning_curves import Learning, learning, mean_line, same_runs
from tandem.compare.multitask import Across
from tandem.compare.report.gallery import gallery
from tandem.compare.tables import interval, listed, number
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import AXES, Run
from tandem.record.reading.states import counted, said_of

if TYPE_CHECKING:
    from tandem.compare.report.write import Comparison

BESIDE = ("eval/reward", "reward/mean", "actor/entropy", "response/length_mean", "eval/diversity")


def payload(found: Comparison) -> dict[str, object]:
    metrics = measured(found)
    axes = [
        axis for axis in AXES if any(len(run.curve(found.metric, axis).x) for run in found.runs)
    ]
    return {
        "metric": found.metric,
        "metrics": metrics,
        "axes": axes,
        "axis": found.axis if found.axis in axes else axes[0],
        "headline": headline(found),
        "meta": meta(found),
        "provenance": provenance(found.runs),
        "variants": [of_variant(one, metrics, axes) for one in found.variants],
        "pairs": [of_pair(pair) for pair in by_claim(found.pairs)],
        "caveat": CAVEAT if any(len(one.scores) <= SMALL for one in found.variants) else None,
        "bands": of_bands(found),
        "profiles": [of_profile(one) for one in found.across],
        "tables": [
            {"name": t.name, "title": t.title, "columns": t.columns, "rows": t.rows}
            | {"notes": t.notes}
            for t in found.tables
        ],
        "gallery": gallery([one.variant for one in found.variants]),
    }


def empty(why: str) -> dict[str, object]:
    """A page that has nothing to show yet, and says why."""
    lists = ("metrics", "axes", "variants", "pairs", "profiles", "tables")
    texts = {"metric": "", "axis": "", "headline": why, "meta": "", "provenance": ""}
    nothing = {"prompts": [], "iterations": [], "columns": [], "note": ""}
    return (
        texts | {name: [] for name in lists} | {"caveat": None, "bands": None, "gallery": nothing}
    )


def measured(found: Comparison) -> list[str]:
    """The metric, and what people look at beside it where all runs have it."""
    names = [run.names() for run in found.runs]
    beside = [name for name in BESIDE if all(name in own for own in names)]
    return list(dict.fromkeys([found.metric, *beside]))


def of_profile(one: Across) -> dict[str, object]:
    own = one.profile
    return {
        "name": one.name,
        "n": one.mean.scores,
        "x": numbers(own.thresholds),
        "share": numbers(own.share),
        "low": numbers(own.low),
        "high": numbers(own.high),
    }


def headline(found: Comparison) -> str:
    """What is seen, and how many runs have not shown all of theirs."""
    tasks = {one.variant.task for one in found.variants}
    said = over_tasks(found) if len(tasks) > 1 else of_task(found)
    going = sum(run.state == "goes on" for run in found.runs)
    if not going:
        return said
    return f"{said} So far: {going} of {len(found.runs)} runs {said_of('goes on', going)}."


def of_task(found: Comparison) -> str:
    """The highest mean, and which of the others are known to be lower."""
    best = max(found.variants, key=lambda one: one.estimate.mean)
    reach = (
        "" if best.estimate.low is None else f" {interval(best.estimate.low, best.estimate.high)}"
    )
    mean = f"{number(best.estimate.mean)}{reach}"
    has = "has the highest" if len(found.variants) > 1 else "has"
    said = f"{best.variant.name} {has} {found.metric}: {mean}, n = {best.estimate.n}."
    own = [pair for pair in found.pairs if pair.better is best]
    lower = [pair.other.variant.name for pair in own if pair.distinct]
    open_ = [pair.other.variant.name for pair in own if not (pair.distinct or pair.going)]
    if lower:
        said += f" It {own[0].better_is} {listed(lower, len(own))}."
    if open_:
        said += f" It is not distinguishable from {listed(open_, len(own))}."
    return said


def over_tasks(found: Comparison) -> str:
    """Scores of different tasks have no highest one, unless they are aggregated."""
    tasks = len({one.variant.task for one in found.variants})
    said = f"{found.metric} on {tasks} tasks: what is claimed is claimed within one."
    if not found.across:
        return said
    best = found.across[0]
    mean = f"{number(best.mean.value)} {interval(best.mean.low, best.mean.high)}"
    highest = f"{best.name} has the highest interquartile mean"
    return f"{said} {highest}: {mean}, n = {best.mean.scores} scores."


def meta(found: Comparison) -> str:
    seeds = sorted({len(one.variant.runs) for one in found.variants})
    many = f"{len(found.variants)} variants" if len(found.variants) > 1 else "1 variant"
    each = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said = [many, f"{len(found.runs)} runs", f"n = {each} seeds each"]
    unfinished = counted([run.state for run in found.runs])
    return " · ".join(filter(None, [*said, unfinished, *found.unrecorded]))


def of_variant(one: Scored, metrics: Sequence[str], axes: Sequence[str]) -> dict[str, object]:
    runs = [run for run in one.variant.runs if run.seed not in one.without]
    return {
        "name": one.variant.name,
        "mean": one.estimate.mean,
        "low": one.estimate.low,
        "high": one.estimate.high,
        "scores": [
            {"seed": run.seed, "score": score, "finished": run.finished, **became(run)}
            for run, score in zip(runs, one.scores, strict=True)
        ],
        "curves": {metric: of_curves(one.variant.runs, metric, axes) for metric in metrics},
    }


def became(run: Run) -> dict[str, bool]:
    """Neither: it is finished, or nobody knows."""
    return {"died": run.state == "died", "goes_on": run.state == "goes on"}


def of_curves(runs: Sequence[Run], metric: str, axes: Sequence[str]) -> Mapping[str, object] | None:
    """The mean with its interval, and each seed as far as it lived, both with an x for every axis.

    An axis that not all of these runs recorded has None: on it the mean would be another one.
    """
    curves = learning(runs, metric)
    if curves is None:
        return None
    _, mean, low, high = zip(*mean_line(curves), strict=True)
    along = {axis: same_runs(curves, learning(runs, metric, axis)) for axis in axes}
    rows = zip(curves.runs, curves.y, curves.lived, strict=True)
    return {
        "x": {axis: numbers(own.middle) if own else None for axis, own in along.items()},
        "mean": numbers(mean),
        "low": numbers(low),
        "high": numbers(high),
        "seeds": [
            {"x": of_seed(along, i), "y": numbers(y[own]), **became(run)}
            for i, (run, y, own) in enumerate(rows)
        ],
    }


def of_seed(along: Mapping[str, Learning | None], i: int) -> Mapping[str, Sequence[float | None]]:
    """Its places on each axis on which they are not those of the mean."""
    known = {
        axis: (own.x[i][own.lived[i]], own.middle[own.lived[i]])
        for axis, own in along.items()
        if own is not None
    }
    return {axis: numbers(x) for axis, (x, middle) in known.items() if not np.allclose(x, middle)}


def by_claim(pairs: Sequence[Pair]) -> list[Pair]:
    """Those that claim something first, then by size."""
    return sorted(pairs, key=lambda pair: (not pair.distinct, -abs(pair.difference.mean)))


def of_pair(pair: Pair) -> dict[str, object]:
    names = f"{pair.better.variant.name} and {pair.other.variant.name}"
    return {
        "text": pair.verdict if pair.distinct else f"{names}: {pair.verdict}",
        "claim": pair.distinct,
        "mean": pair.difference.mean,
        "low": pair.difference.low,
        "high": pair.difference.high,
        "p": pair.adjusted,
        "n": list(pair.seeds),
        "test": pair.test,
    }


def of_bands(found: Comparison) -> dict[str, object] | None:
    if found.experiment is None:
        return None
    variants = [
        of_band(expected, [one for one in found.judged if one.expected is expected])
        for expected in found.experiment.variants
    ]
    return {
        "name": found.experiment.folder.name,
        "metric": found.experiment.metric,
        "variants": [one for one in variants if one["runs"]],
        "others": [
            {"name": one.run.folder.name, "text": verdict(one)}
            for one in found.judged
            if one.against
        ],
    }


def of_band(expected: Expected, judged: Sequence[Judged]) -> dict[str, object]:
    band = expected.band
    return {
        "name": expected.name,
        "n": band.n,
        "x": band.x.tolist(),
        "mean": numbers(band.mean),
        "low": numbers(band.low),
        "high": numbers(band.high),
        "runs": [
            {
                "name": one.run.folder.name,
                "text": verdict(one),
                "holds": one.holds,
                "y": numbers(one.values),
                "outside": one.outside.tolist(),
            }
            for one in judged
            if not one.against
        ],
    }
