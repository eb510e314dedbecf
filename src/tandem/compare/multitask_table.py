"""The table of variants over many tasks."""

from __future__ import annotations

from tandem.compare.multitask import TaskAggregates
from tandem.compare.table import Table
from tandem.compare.texts import format_interval, format_number

# benchmarks/results/coverage.md
HELD = "It is slightly too narrow: in simulations 92 to 94 % of its intervals held the true value."


def table_tasks(found: TaskAggregates, metric: str) -> Table:
    notes = ["Differences are computed within each task."]
    if found.variants:
        notes.append(
            f"Bootstrap: the middle 95 % of resamples that draw seeds within each task. {HELD} "
            "Scores are pooled without normalisation: if tasks differ more than variants, the "
            "middle half consists of tasks of medium difficulty."
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
                format_number(one.mean.value),
                format_interval(one.mean.low, one.mean.high),
            )
            for one in found.variants
        ],
        notes=notes,
    )
