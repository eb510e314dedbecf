"""A comparison of runs: the request and all its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tandem.compare import (
    bands,
    configuration,
    curve_tables,
    multitask,
    noise_table,
    pairs,
    tables,
)
from tandem.compare.expected_bands import Experiment
from tandem.compare.judges import JudgedVariant, judge_variants, table_judged
from tandem.compare.multitask import TaskAggregate
from tandem.compare.pairs import Pair
from tandem.compare.scores import Scored, score_variant
from tandem.compare.table import Table
from tandem.record.foreign import UnreadableRun
from tandem.record.reading.runs import AXES, Run
from tandem.record.reading.variants import Variant, group_runs

METRICS = ("eval/accuracy", "eval/reward")  # the one that most runs have; the first on a tie


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of a comparison."""

    by: Sequence[str] = ()
    task: Sequence[str] = ()
    metric: str | None = None
    axis: str = "iterations"
    threshold: float | None = None  # None: derived from the runs
    power_for: float | None = None  # a true difference; None: the observed one
    experiment: Experiment | None = None  # whose bands the runs are checked against

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            near = get_close_matches(self.axis, AXES, n=1) or [" or ".join(AXES)]
            raise ValueError(f"x={self.axis} is no axis; did you mean {near[0]!r}?")
        if self.power_for is not None and self.power_for <= 0:
            raise ValueError(f"power_for={self.power_for:g} must be a difference above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The content of a report."""

    metric: str
    axis: str  # on which the curves are first shown
    variants: Sequence[Scored]
    pairs: Sequence[Pair]
    silent: Sequence[Variant] = ()  # no run of them has a score
    tables: Sequence[Table] = ()
    over_tasks: Sequence[TaskAggregate] = ()  # variants over many tasks
    experiment: Experiment | None = None
    judged: Sequence[bands.Judged] = ()  # every run against the experiment
    judges: Sequence[JudgedVariant] = ()  # rewards of weight 0 against the trained one
    unrecorded: Sequence[str] = ()  # runs left out, or planned without a record, in sentences

    @property
    def runs(self) -> list[Run]:
        return [run for one in self.variants for run in one.variant.runs]


def compare(runs: Sequence[Run], request: Request) -> Comparison:
    """Scores, pairs and all tables, of the runs whose evaluations can be read.

    Raises UnreadableRun if none can.
    """
    try:
        return compare_readable(runs, request)
    except UnreadableRun as error:
        others = [run for run in runs if run.folder != error.folder]
        if not others:
            raise
        found = compare(others, request)
        return replace(found, unrecorded=(f"left out: {error}", *found.unrecorded))


def compare_readable(runs: Sequence[Run], request: Request) -> Comparison:
    """Scores, pairs and all tables. Raises UnreadableRun for a damaged line of evaluations."""
    found = compare_scores(runs, request)
    variants, metric = found.variants, found.metric
    made = [tables.table_scores(variants, metric, found.silent)]
    if found.pairs:
        made += [tables.table_pairs(found.pairs, metric)]
        made += [configuration.table_differences(variants, request.by)]
    beside = [
        curve_tables.table_curves(variants, metric, request.axis, request.threshold),
        curve_tables.table_tries(variants),
        noise_table.table_noises(variants, found.pairs, metric),
    ]
    many = multitask.aggregate_tasks(variants, metric)
    if many is not None:
        beside.insert(0, multitask.table_tasks(many, metric))
    made += [table for table in beside if table is not None]
    judges = judge_variants(variants)
    if (of_judges := table_judged(judges)) is not None:
        made.insert(0, of_judges)
    judged = []
    if request.experiment is not None:
        judged = [bands.judge(run, request.experiment) for run in runs]
        made.insert(0, bands.table_judged(judged, request.experiment))
    over_tasks = [] if many is None else many.variants
    return replace(found, tables=made, over_tasks=over_tasks, judged=judged, judges=tuple(judges))


def compare_scores(runs: Sequence[Run], request: Request) -> Comparison:
    """Scores and pairs only, which is what a headline needs."""
    metric = choose_metric(runs, request.metric)
    every = group_runs(runs, request.by, request.task)
    silent = [one for one in every if all(run.score(metric) is None for run in one.runs)]
    variants = [score_variant(one, metric) for one in every if one not in silent]
    return Comparison(
        metric=metric,
        axis=request.axis,
        variants=variants,
        silent=silent,
        pairs=pairs.compare_all(variants, metric, request.power_for),
        experiment=request.experiment,
    )


def choose_metric(runs: Sequence[Run], metric: str | None) -> str:
    """The metric given, or the default that most runs have. Runs without it have no score.

    Raises ValueError if no run has the given metric, or if none is given and most runs have none.
    """
    every = {run.folder: names for run in runs if (names := run.names())}  # none: died at once
    if not every:
        raise ValueError("no run has written any metrics yet")
    if metric is None:
        lacking = {name: [one for one in every if name not in every[one]] for name in METRICS}
        chosen = min(METRICS, key=lambda name: len(lacking[name]))
        if 2 * len(lacking[chosen]) < len(every):
            return chosen
        gaps = ", ".join(f"{one[0]} has no {name}" for name, one in lacking.items())
        raise ValueError(f"most runs lack {' and '.join(METRICS)} ({gaps}); set metric=NAME")
    known = set().union(*every.values())
    if all(run.score(metric) is None for run in runs):
        near = get_close_matches(metric, sorted(known), n=1)
        of_evaluation = ", ".join(sorted(name for name in known if name.startswith("eval/")))
        hint = f"did you mean {near[0]!r}?" if near else f"evaluations have {of_evaluation}"
        raise ValueError(f"metric={metric}: no run has it; {hint}")
    return metric
