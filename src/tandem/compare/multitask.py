"""Variants over many tasks: interquartile means and performance profiles, if data suffice.

Scores of different tasks are pooled without normalisation, so they must be shares: an accuracy or
pass@k. A variant is aggregated if it has four tasks and twenty scores, and ran on all tasks of the
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.compare.scores import Scored, is_share
from tandem.compare.statistics.aggregates import (
    Aggregate,
    Profile,
    interquartile_mean,
    performance_profile,
    too_few,
)
from tandem.compare.table import Table
from tandem.compare.texts import format_interval, format_number

THRESHOLDS = np.linspace(0, 1, 101)
# benchmarks/results/coverage.md
HELD = (
    "It is slightly too narrow: in simulations 90 to 95 % of its intervals held the true value, "
    "and 87 % where three of four tasks had only three seeds."
)
Scores = Mapping[str, Sequence[float]]  # of one variant by task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAggregate:
    """A variant over all tasks."""

    name: str
    mean: Aggregate
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAggregates:
    """The aggregated variants, and why the others are left out."""

    tasks: Sequence[str]
    variants: Sequence[TaskAggregate]
    left_out: Sequence[str]  # sentences


def aggregate_tasks(variants: Sequence[Scored], metric: str) -> TaskAggregates | None:
    """The aggregates; None for a single task."""
    tasks = sorted({one.variant.task for one in variants})
    if len(tasks) < 2:
        return None
    by_name: dict[str, dict[str, Sequence[float]]] = {}
    for one in variants:
        by_name.setdefault(one.variant.everywhere, {})[one.variant.task] = one.scores
    why = {name: explain_exclusion(own, tasks, metric) for name, own in by_name.items()}
    found = [_aggregate(name, own) for name, own in by_name.items() if not why[name]]
    return TaskAggregates(
        tasks=tasks,
        variants=sorted(found, key=lambda one: -one.mean.value),
        left_out=[f"{name}: {said}" for name, said in why.items() if said],
    )


def explain_exclusion(scores: Scores, tasks: Sequence[str], metric: str) -> str:
    """Why the scores of a variant are not aggregated; "" if they are."""
    if not is_share(metric):
        return f"{metric} is not a share of 1, so tasks have no common scale"
    if not all(0 <= score <= 1 for own in scores.values() for score in own):
        return "scores outside 0 to 1"
    if len(scores) < len(tasks):
        return f"ran on {len(scores)} of the {len(tasks)} tasks"
    return too_few(scores)


def _aggregate(name: str, scores: Scores) -> TaskAggregate:
    return TaskAggregate(
        name=name,
        mean=interquartile_mean(scores),
        profile=performance_profile(scores, THRESHOLDS),
    )


def table_tasks(found: TaskAggregates, metric: str) -> Table:
    notes = ["Differences are computed within each task."]
    if found.variants:
        notes.append(
            "Each task weighs alike, whatever its number of seeds. Bootstrap: the middle 95 % of "
            f"resamples that draw seeds within each task. {HELD} Scores are pooled without "
            "normalisation: if tasks differ more than variants, the middle half consists of tasks "
            "of medium difficulty."
        )
    if found.left_out:
        notes.append(f"Not aggregated: {'; '.join(found.left_out)}.")
    return Table(
        name="tasks",
        title=f"{metric}: interquartile mean over {len(found.tasks)} tasks",
        columns=("variant", "tasks", "scores", "interquartile mean", "bootstrap"),
        rows=[
            (
                one.name,
                str(one.mean.tasks),
                str(one.mean.scores),
                format_number(one.mean.value),
                format_interval(one.mean.low, one.mean.high),
            )
            for one in found.variants
        ],
        notes=notes,
    )
