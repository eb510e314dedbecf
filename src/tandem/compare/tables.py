"""The tables of a comparison of two or more variants."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.compare.comparison import Pair, Scored, is_score
from tandem.compare.table import Table
from tandem.record.reading.states import UNFINISHED, counted, said_of
from tandem.record.reading.variants import Variant, differing, facts_of

NAMED = 4  # variants in a sentence; more are counted


def of_variants(variants: Sequence[Scored], metric: str, silent: Sequence[Variant] = ()) -> Table:
    """Mean and interval of each, and every seed: the worst one has a column of its own.

    `silent`: variants of which no run came to a score.
    """
    ordered = sorted(variants, key=lambda one: (one.variant.task, -one.estimate.mean))
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
                one.variant.name,
                str(one.estimate.n),
                number(one.estimate.mean),
                interval(one.estimate.low, one.estimate.high),
                f"{number(one.worst[1])} (seed {one.worst[0]})",
                " ".join(map(number, one.scores)),
            )
            for one in ordered
        ]
        + [(one.name, "0", "-", "-", "-", "-") for one in silent],
        notes=_unfinished(ordered, silent),
    )


def _unfinished(variants: Sequence[Scored], silent: Sequence[Variant]) -> list[str]:
    """What became of the runs that are not whole; [] where all are."""
    found = [said for one in variants if (said := _of_seeds(one))]
    for one in silent:
        found.append(f"{one.name}: no run has a score, {counted([run.state for run in one.runs])}")
    if not found:
        return []
    return [f"A run that is not whole counts with the last score it has. {'; '.join(found)}"]


def _of_seeds(one: Scored) -> str:
    """As in "grpo: seed 1, 2 died, seed 3 goes on"; "" where all are whole."""
    which = {state: one.seeds_that(state) for state in UNFINISHED}
    said = [
        f"seed {', '.join(map(str, seeds))} {said_of(state, len(seeds))}"
        for state, seeds in which.items()
        if seeds
    ]
    without = f" ({len(one.without)} without any score)" if one.without else ""
    return f"{one.variant.name}: {', '.join(said)}{without}" if said else ""


def of_pairs(pairs: Sequence[Pair], metric: str) -> Table:
    return Table(
        name="differences",
        title=f"{metric}: differences, p by Holm over all {len(pairs)} pairs",
        columns=("pair", "n", "difference", "95 %", "test", "r", "p", "wins", "verdict"),
        rows=[
            (
                f"{pair.better.variant.name} - {pair.other.variant.name}",
                ", ".join(map(str, pair.seeds)),
                number(pair.difference.mean),
                interval(pair.difference.low, pair.difference.high),
                pair.test,
                number(pair.difference.correlation),
                number(pair.adjusted),
                won(pair),
                pair.verdict,
            )
            for pair in sorted(pairs, key=by_size)
        ],
    )


def by_size(pair: Pair) -> tuple[str, float]:
    """The largest difference of a task first."""
    return pair.better.variant.task, -pair.difference.mean


def of_differences(variants: Sequence[Scored]) -> Table:
    """What the configurations do not agree on, and nothing else."""
    facts = [facts_of(one.variant.runs[0]) for one in variants]
    return Table(
        name="configuration",
        title="What the variants differ in",
        columns=("key", *(one.variant.name for one in variants)),
        rows=[(key, *(str(fact.get(key, "-")) for fact in facts)) for key in differing(facts)],
    )


def won(pair: Pair) -> str:
    share = f"{pair.wins.wins:g} of {pair.wins.games}"
    low, high = pair.wins.low, pair.wins.high
    return share if low is None else f"{share} {interval(low, high)}"


def number(value: float | None) -> str:
    """Three decimals, or three digits of what is far from 1; a dash where there is none."""
    if value is None:
        return "-"
    small = value != 0 and not 0.001 <= abs(value) < 1000
    return f"{value:.3g}" if small else f"{value:.3f}"


def interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"[{number(low)}, {number(high)}]"


def listed(names: Sequence[str], among: int) -> str:
    """A few of so many others by name, and of more how many there are."""
    if len(names) > NAMED:
        return f"{len(names)} of {among} others" if len(names) < among else f"all {among} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
