"""The tables of scores and of differences."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.compare.pairs import Pair
from tandem.compare.scores import Scored, is_score, rank
from tandem.compare.table import Table
from tandem.compare.texts import format_edges, format_interval, format_number, format_p
from tandem.record.reading.states import UNFINISHED, count_states, describe_state
from tandem.record.reading.variants import Variant


def table_scores(variants: Sequence[Scored], metric: str, silent: Sequence[Variant] = ()) -> Table:
    """Mean and interval of each, and every seed: the worst one has a column of its own.

    `silent`: variants of which no run came to a score.
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
    """What became of the runs that are not whole, or have no score; [] where there is none."""
    found = [said for one in variants if (said := _describe_seeds(one))]
    for one in silent:
        states = count_states([run.state for run in one.runs])  # "" where all finished
        found.append(", ".join(filter(None, (f"{one.name}: no run has a score", states))))
    if not found:
        return []
    return [f"A run counts with the last score it has, or not at all. {'; '.join(found)}"]


def _describe_seeds(one: Scored) -> str:
    """As in "grpo: seed 1, 2 died, seed 3 goes on"; "" where all are whole and have a score."""
    which = {state: one.seeds_that(state) for state in UNFINISHED}
    said = [
        f"seed {', '.join(map(str, seeds))} {describe_state(state, len(seeds))}"
        for state, seeds in which.items()
        if seeds
    ]
    if one.without:
        said.append(f"seed {', '.join(map(str, one.without))} without any score")
    return f"{one.name}: {', '.join(said)}" if said else ""


def table_pairs(pairs: Sequence[Pair], metric: str) -> Table:
    return Table(
        name="differences",
        title=f"{metric}: differences of {len(pairs)} pair{'s' if len(pairs) > 1 else ''}",
        columns=(
            *("pair", "n", "difference", "95 % of all at once", "95 % of it alone"),
            *("test", "r", "p", "wins", "verdict"),
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
        "A claim is an interval of all at once that leaves out 0; such intervals hold together in "
        f"95 % of reports. p is multiplied by the {count} pairs (Bonferroni) and below 0.05 for "
        "the same pairs. The interval of a pair alone answers a question about this pair that was "
        "asked before the runs."
    )


def by_size(pair: Pair) -> tuple[str, float]:
    """The largest difference of a task first."""
    return pair.better.variant.task, -pair.difference.mean


def format_wins(pair: Pair) -> str:
    """Out of the pairs of one seed, where seeds are paired."""
    of = "pairs" if pair.paired_on else "games"
    share = f"{pair.wins.wins:g} of {pair.wins.games} {of}"
    low, high = pair.wins.low, pair.wins.high
    return share if low is None else f"{share} {format_interval(low, high)}"
