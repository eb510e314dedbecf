"""The tables of scores and of differences."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.compare.pairs import Pair
from tandem.compare.scores import Scored, is_score, rank
from tandem.compare.table import Table
from tandem.compare.texts import (
    format_edges,
    format_interval,
    format_number,
    format_p,
    name_seeds,
)
from tandem.record.reading.states import UNFINISHED, count_states, describe_state
from tandem.record.reading.variants import Variant


def table_scores(variants: Sequence[Scored], metric: str, silent: Sequence[Variant] = ()) -> Table:
    """Mean, interval and every seed of each variant, with a column for the worst seed.

    `silent`: variants without any score.
    """
    ordered = rank(variants)
    return Table(
        name="scores",
        title=f"{metric}: mean over seeds, Student's 95 % interval",
        columns=(
            *("variant", "n", "mean", "95 %"),
            "worst seed" if is_score(metric) else "lowest seed",
            "each seed",
        ),
        rows=[
            (
                one.name,
                str(one.estimate.n),
                format_number(one.estimate.mean),
                format_interval(one.estimate.low, one.estimate.high),
                f"{format_number(one.worst[1])} (seed {one.worst[0]})",
                " ".join(map(format_number, one.scores)),
            )
            for one in ordered
        ]
        + [(one.name, "0", "-", "-", "-", "-") for one in silent],
        notes=_list_unfinished(ordered, silent),
    )


def _list_unfinished(variants: Sequence[Scored], silent: Sequence[Variant]) -> list[str]:
    """A note on runs that are incomplete or have no score; [] if there are none."""
    found = [said for one in variants if (said := _describe_seeds(one))]
    for one in silent:
        states = count_states([run.state for run in one.runs])  # "" if all finished
        found.append(", ".join(filter(None, (f"{one.name}: no run has a score", states))))
    if not found:
        return []
    return [f"A run counts with its last score; without one it is left out. {'; '.join(found)}"]


def _describe_seeds(one: Scored) -> str:
    """For example "grpo: seeds 1, 2 died"; "" if all runs finished and have a last score."""
    which = {state: one.seeds_that(state) for state in UNFINISHED}
    said = [
        f"{name_seeds(seeds)} {describe_state(state, len(seeds))}"
        for state, seeds in which.items()
        if seeds
    ]
    if one.without:
        said.append(f"{name_seeds(one.without)} without a score")
    said += one.describe_outdated()
    return f"{one.name}: {', '.join(said)}" if said else ""


def table_pairs(pairs: Sequence[Pair], metric: str) -> Table:
    return Table(
        name="differences",
        title=f"{metric}: differences of {len(pairs)} pair{'s' if len(pairs) > 1 else ''}",
        columns=(
            *("pair", "n", "difference", "95 % for all pairs", "95 % for this pair"),
            *("test", "correlation", "p", "wins", "verdict"),
        ),
        rows=[
            (
                f"{pair.better.name} - {pair.other.name}",
                ", ".join(map(str, pair.seeds)),
                format_number(pair.difference.mean),
                format_edges(pair.simultaneous),
                format_edges(pair.difference.interval()),
                pair.test,
                format_number(pair.difference.correlation),
                format_p(pair.adjusted),
                format_wins(pair),
                pair.verdict,
            )
            for pair in sorted(pairs, key=by_size)
        ],
        notes=[_explain_claims(len(pairs))] if len(pairs) > 1 else [],
    )


def _explain_claims(count: int) -> str:
    return (
        "A claim is a simultaneous interval that excludes 0; these intervals hold together in "
        f"95 % of reports. p is multiplied by the {count} pairs (Bonferroni) and is below 0.05 for "
        "the same pairs. The interval of one pair alone is the right one only for a pair chosen "
        "before the runs."
    )


def by_size(pair: Pair) -> tuple[str, float]:
    """Sort key: by task, then the largest difference first."""
    return pair.better.variant.task, -pair.difference.mean


def format_wins(pair: Pair) -> str:
    """Wins among the pairs of one seed if seeds are paired, else among all pairs of runs."""
    of = "pairs" if pair.paired_on else "pairs of runs"
    share = f"{pair.wins.wins:g} of {pair.wins.games} {of}"
    low, high = pair.wins.low, pair.wins.high
    return share if low is None else f"{share} {format_interval(low, high)}"
