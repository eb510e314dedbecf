"""Variants over many tasks: interquartile means and performance profiles, where they say anything.

Scores of different tasks are put together as they are, so they must be shares: an accuracy, a
pass@k. They are not normalised. A variant is aggregated where it has four tasks and twenty scores,
and beside others only where all have the same tasks.
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

THRESHOLDS = np.linspace(0, 1, 101)
Scores = Mapping[str, Sequence[float]]  # of one variant by task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAggregate:
    """A variant over all tasks."""

    name: str
    seeds: Sequence[int]  # scores of each task
    mean: Aggregate
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAggregates:
    """What can be said over tasks, and why not of the others."""

    tasks: Sequence[str]
    variants: Sequence[TaskAggregate]
    left_out: Sequence[str]  # sentences


def aggregate_tasks(variants: Sequence[Scored], metric: str) -> TaskAggregates | None:
    """None: there is one task."""
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
    """Why the scores of a variant are not aggregated; "" where they are."""
    if not is_share(metric):
        return f"{metric} is no share of 1, and tasks have no scale in common"
    if not all(0 <= score <= 1 for own in scores.values() for score in own):
        return "scores outside 0 to 1"
    if len(scores) < len(tasks):
        return f"{len(scores)} of the {len(tasks)} tasks"
    return too_few(scores)


def _aggregate(name: str, scores: Scores) -> TaskAggregate:
    return TaskAggregate(
        name=name,
        seeds=[len(own) for own in scores.values()],
        mean=interquartile_mean(scores),
        profile=performance_profile(scores, THRESHOLDS),
    )
