"""The content of a page, numbers and texts, in the form of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tandem.compare.bands import Judged, describe_judged
from tandem.compare.comparison import Comparison
from tandem.compare.expected_bands import Expected, round_numbers
from tandem.compare.headline import write_headline, write_meta, write_next, write_warnings
from tandem.compare.learning_curves import AlignedCurves, align_curves, draw_mean, match_runs
from tandem.compare.multitask import TaskAggregate
from tandem.compare.pairs import CAVEAT, SMALL, Pair, choose_pairs, order_by_claim
from tandem.compare.report.gallery import make_gallery
from tandem.compare.scores import Scored, bounds_of, rank
from tandem.evaluation.reward_hacking import metric_of
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import AXES, Run

BESIDE = ("eval/reward", "reward/mean", "actor/entropy", "response/length_mean", "eval/diversity")


def make_payload(found: Comparison) -> dict[str, object]:
    metrics = choose_metrics(found)
    ranked = rank(found.variants)
    axes = [
        axis for axis in AXES if any(len(run.curve(found.metric, axis).x) for run in found.runs)
    ]
    return {
        "metric": found.metric,
        "metrics": metrics,
        "axes": axes,
        "axis": found.axis if found.axis in axes else axes[0],
        "headline": write_headline(found),
        "warnings": write_warnings(found),
        "next": write_next(found),
        "meta": write_meta(found),
        "provenance": provenance(found.runs),
        "variants": [describe_variant(one, metrics, axes) for one in ranked],
        "joined": join_seeds(ranked),
        "pairs": [
            describe_pair(pair, of_best=is_of_best(pair, ranked))
            for pair in order_by_claim(found.pairs)
        ],
        "caveat": CAVEAT if any(len(one.scores) <= SMALL for one in found.variants) else None,
        "bands": describe_bands(found),
        "profiles": [describe_profile(one) for one in found.over_tasks],
        "tables": [
            {"name": t.name, "title": t.title, "columns": t.columns, "rows": t.rows}
            | {"notes": t.notes}
            for t in found.tables
        ],
        "gallery": make_gallery([one.variant for one in ranked]),
    }


def make_empty_payload(why: str) -> dict[str, object]:
    """The content of a page that has nothing to show yet, with the reason."""
    lists = (
        *("metrics", "axes", "variants", "joined", "pairs", "profiles", "tables"),
        *("warnings", "next"),
    )
    texts = {"metric": "", "axis": "", "headline": why, "meta": "", "provenance": ""}
    nothing = {"prompts": [], "iterations": [], "columns": [], "note": ""}
    return (
        texts | {name: [] for name in lists} | {"caveat": None, "bands": None, "gallery": nothing}
    )


def choose_metrics(found: Comparison) -> list[str]:
    """The metric, and those usually inspected with it if all runs have them."""
    names = [run.names() for run in found.runs]
    judges = dict.fromkeys(metric_of(one.judge) for one in found.judges)
    beside = [name for name in (*judges, *BESIDE) if all(name in own for own in names)]
    return list(dict.fromkeys([found.metric, *beside]))


def describe_profile(one: TaskAggregate) -> dict[str, object]:
    own = one.profile
    return {
        "name": one.name,
        "n": one.mean.scores,
        "x": round_numbers(own.thresholds),
        "share": round_numbers(own.share),
        "low": round_numbers(own.low),
        "high": round_numbers(own.high),
    }


def describe_variant(one: Scored, metrics: Sequence[str], axes: Sequence[str]) -> dict[str, object]:
    runs = [run for run in one.variant.runs if run.seed not in one.without]
    return {
        "name": one.variant.name,
        "mean": one.estimate.mean,
        "low": one.estimate.low,
        "high": one.estimate.high,
        "scores": [
            {"seed": run.seed, "score": score, "finished": run.is_finished, **describe_end(run)}
            for run, score in zip(runs, one.scores, strict=True)
        ],
        "curves": {metric: describe_curves(one.variant.runs, metric, axes) for metric in metrics},
    }


def describe_end(run: Run) -> dict[str, bool]:
    """Whether the run died or is in progress; neither if it finished or is inactive."""
    return {"died": run.state == "died", "running": run.state == "running"}


def describe_curves(
    runs: Sequence[Run], metric: str, axes: Sequence[str]
) -> Mapping[str, object] | None:
    """The mean with its interval, and each seed up to its end, both with an x for every axis.

    x is None for an axis that not all of these runs recorded: the mean would differ on it.
    """
    curves = align_curves(runs, metric)
    if curves is None:
        return None
    _, mean, low, high = zip(*draw_mean(curves, bounds_of(metric)), strict=True)
    along = {axis: match_runs(curves, align_curves(runs, metric, axis)) for axis in axes}
    rows = zip(curves.runs, curves.y, curves.lived, strict=True)
    return {
        "x": {axis: round_numbers(own.middle) if own else None for axis, own in along.items()},
        "mean": round_numbers(mean),
        "low": round_numbers(low),
        "high": round_numbers(high),
        "seeds": [
            {"x": place_seed(along, i), "y": round_numbers(y[own]), **describe_end(run)}
            for i, (run, y, own) in enumerate(rows)
        ],
    }


def place_seed(
    along: Mapping[str, AlignedCurves | None], i: int
) -> Mapping[str, Sequence[float | None]]:
    """Axis values of a seed, for each axis on which they differ from those of the mean."""
    known = {
        axis: (own.x[i][own.lived[i]], own.middle[own.lived[i]])
        for axis, own in along.items()
        if own is not None
    }
    return {
        axis: round_numbers(x) for axis, (x, middle) in known.items() if not np.allclose(x, middle)
    }


def join_seeds(ranked: Sequence[Scored]) -> list[list[int]]:
    """For each variant but the last, the seeds that are paired with the next one."""
    return [
        choose_pairs(one, other) if one.variant.task == other.variant.task else []
        for one, other in pairwise(ranked)
    ]


def is_of_best(pair: Pair, ranked: Sequence[Scored]) -> bool:
    """Whether one of the two has the highest mean of its task."""
    best = next(one for one in ranked if one.variant.task == pair.better.variant.task)
    return best in (pair.better, pair.other)


def describe_pair(pair: Pair, *, of_best: bool) -> dict[str, object]:
    names = f"{pair.better.name} and {pair.other.name}"
    text = pair.verdict if pair.distinct or pair.going else "not distinguishable"
    return {
        "text": text if pair.distinct else f"{names}: {text}",
        "advice": "" if pair.distinct or pair.going else pair.advice,
        "claim": pair.distinct,
        "of_best": of_best,
        "better": pair.better.name,
        "verb": pair.better_is,
        "other": pair.other.name,
        "mean": pair.difference.mean,
        "alone": pair.difference.interval(),
        "together": pair.simultaneous,
        "p": pair.adjusted,
        "n": list(pair.seeds),
        "test": pair.test,
    }


def describe_bands(found: Comparison) -> dict[str, object] | None:
    if found.experiment is None:
        return None
    variants = [
        describe_band(expected, [one for one in found.judged if one.expected is expected])
        for expected in found.experiment.variants
    ]
    return {
        "name": found.experiment.folder.name,
        "metric": found.experiment.metric,
        "variants": [one for one in variants if one["runs"]],
        "others": [
            {"name": one.run.folder.name, "text": describe_judged(one)}
            for one in found.judged
            if one.against
        ],
    }


def describe_band(expected: Expected, judged: Sequence[Judged]) -> dict[str, object]:
    band = expected.band
    return {
        "name": expected.name,
        "n": band.n,
        "x": band.x.tolist(),
        "mean": round_numbers(band.mean),
        "low": round_numbers(band.low),
        "high": round_numbers(band.high),
        "runs": [
            {
                "name": one.run.folder.name,
                "text": describe_judged(one),
                "holds": one.holds,
                "y": round_numbers(one.values),
                "outside": one.outside.tolist(),
            }
            for one in judged
            if not one.against
        ],
    }
