"""Variants over many tasks: interquartile means and performance profiles, where they say anything.

Scores of different tasks are put together as they are, so they must be shares: an accuracy, a
pass@k. They are not normalised. A variant is aggregated where it has four tasks and twenty scores,
and beside others only where all have the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.compare.comparison import Scored, is_share
from tandem.compare.statistics.aggregates import (
    Aggregate,
    Profile,
    interquartile_mean,
    performance_profile,
    too_few,
)
from tandem.compare.table import Table
from tandem.compare.tables import interval, number

THRESHOLDS = np.linspace(0, 1, 101)
# benchmarks/results/coverage.md
HELD = "It is a little too sure: in simulations 92 to 94 % of such intervals held the truth."
Scores = Mapping[str, Sequence[float]]  # of one variant by task


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """A variant over all tasks."""

    name: str
    seeds: Sequence[int]  # scores of each task
    mean: Aggregate
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """What can be said over tasks, and why not of the others."""

    tasks: Sequence[str]
    variants: Sequence[Across]
    left_out: Sequence[str]  # sentences


def over_tasks(variants: Sequence[Scored], metric: str) -> Many | None:
    """None: there is one task."""
    tasks = sorted({one.variant.task for one in variants})
    if len(tasks) < 2:
        return None
    by_name: dict[str, dict[str, Sequence[float]]] = {}
    for one in variants:
        by_name.setdefault(one.variant.everywhere, {})[one.variant.task] = one.scores
    why = {name: why_not(own, tasks, metric) for name, own in by_name.items()}
    found = [_across(name, own) for name, own in by_name.items() if not why[name]]
    return Many(
        tasks=tasks,
        variants=sorted(found, key=lambda one: -one.mean.value),
        left_out=[f"{name}: {said}" for name, said in why.items() if said],
    )


def why_not(scores: Scores, tasks: Sequence[str], metric: str) -> str:
    """Why the scores of a variant are not aggregated; "" where they are."""
    if not is_share(metric):
        return f"{metric} is no share of 1, and tasks have no scale in common"
    if not all(0 <= score <= 1 for own in scores.values() for score in own):
        return "scores outside 0 to 1"
    if len(scores) < len(tasks):
        return f"{len(scores)} of the {len(tasks)} tasks"
    return too_few(scores)


def _across(name: str, scores: Scores) -> Across:
    return Across(
        name=name,
        seeds=[len(own) for own in scores.values()],
        mean=interquartile_mean(scores),
        profile=performance_profile(scores, THRESHOLDS),
    )


def of_tasks(found: Many, metric: str) -> Table:
    notes = ["Differences are those within each task."]
    if found.variants:
        notes.append(
            f"Bootstrap: the middle 95 % of resamples that draw seeds within each task. {HELD} "
            "Scores are put together as they are: where tasks differ more than variants, the "
            "middle half is that of middle tasks."
        )
    uneven = [
        f"{one.name} ({', '.join(map(str, one.seeds))} seeds)"
        for one in found.variants
        if len(set(one.seeds)) > 1
    ]
    if uneven:
        notes.append(f"A task with more seeds weighs more: {'; '.join(uneven)}.")
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
                number(one.mean.value),
                interval(one.mean.low, one.mean.high),
            )
            for one in found.variants
        ],
        notes=notes,
    )
