"""The table of noise: whether seeds or prompts make a mean uncertain, and which to add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tandem.compare.comparison import Pair, Scored
from tandem.compare.statistics.intervals import LEVEL
from tandem.compare.statistics.variance_components import (
    SMALL,
    VarianceComponents,
    own,
    shared,
    shared_unpaired,
    unrelated,
)
from tandem.compare.table import Table
from tandem.compare.tables import by_size, interval, number
from tandem.record.reading.evaluations import Asked, last_evaluation

Answers = Mapping[int, Asked]  # by seed, of the runs of a variant that have a score


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A variant, or a difference of two."""

    name: str
    seeds: Sequence[int]  # n, of each side
    found: VarianceComponents | None
    why: str = ""  # nothing was found; "": it was, or a side alone says why


def of_noises(variants: Sequence[Scored], pairs: Sequence[Pair], metric: str) -> Table | None:
    """None: no run kept what its evaluations found of each prompt, or all were asked all there
    are: each source has one prompt, which any other set would ask too."""
    ordered = sorted(variants, key=lambda one: (one.variant.task, -one.estimate.mean))
    answers = {one.variant.name: answers_of(one, metric) for one in ordered}
    alone = [_alone(one, answers[one.variant.name]) for one in ordered]
    if all(row.found is None for row in alone):
        return None
    of_name = {row.name: row.found for row in alone}
    between = [_between(pair, answers, of_name) for pair in sorted(pairs, key=by_size)]
    return Table(
        name="noises",
        title=f"{metric}: noise of seeds and noise of prompts, as standard errors of the mean",
        columns=(
            *("variant or difference", "n", "prompts", "mean", "on these prompts"),
            *("another set adds", "95 % on any such set", "by seeds", "by prompts"),
            *("prompts for half", "larger"),
        ),
        rows=[_cells(row) for row in (*alone, *between)],
        notes=[*_notes(alone, between), bought(between or alone)],
    )


def _alone(one: Scored, answers: Answers) -> Row:
    found, why = noises([*answers.values()]), ""
    if not answers:
        why = "its runs kept no prompts"
    elif found is None:
        why = "each source has one prompt, which any other set would ask too"
    return Row(name=one.variant.name, seeds=[len(one.scores)], found=found, why=why)


def _between(
    pair: Pair, answers: Mapping[str, Answers], alone: Mapping[str, VarianceComponents | None]
) -> Row:
    sides = pair.better, pair.other
    found = of_pair(pair, answers, alone)
    known = all(alone[side.variant.name] is not None for side in sides)
    why = "its sides share prompts, but no pairs of runs" if known and found is None else ""
    seeds = [len(pair.paired_on)] * 2 if pair.paired_on else pair.seeds
    return Row(
        name=" - ".join(side.variant.name for side in sides),
        seeds=seeds,
        found=found,
        why=why,
    )


def answers_of(one: Scored, metric: str) -> Answers:
    """{}: some run that has a score kept no prompts."""
    scored = [run for run in one.variant.runs if run.seed not in one.without]
    found = {run.seed: last_evaluation(run, metric) for run in scored}
    return {} if None in found.values() else found


def noises(answers: Sequence[Asked]) -> VarianceComponents | None:
    """None: nothing was kept, or each source has one prompt, so that nothing was left to chance."""
    table = crossed(answers) if len(answers) > 1 else None
    if table is not None:
        return shared(*table) if are_drawn(table[1]) else None
    known = [_known(one, np.isfinite(one.values)) for one in answers]
    if not known or not all(are_drawn(one.sources) for one in known):
        return None
    return own([one.values for one in known], [one.sources for one in known])


def are_drawn(sources: Sequence[str]) -> bool:
    """Whether prompts are some of many, and not all that their sources have to ask."""
    return len(set(sources)) < len(sources)


def crossed(answers: Sequence[Asked]) -> tuple[NDArray, Sequence[str]] | None:
    """[n, P] and the sources of the prompts that all have a number of; None: seeds differ in
    what they were asked."""
    if any(one.prompts != answers[0].prompts for one in answers):
        return None
    y = np.stack([one.values for one in answers])
    whole = np.isfinite(y).all(0)
    return y[:, whole], _known(answers[0], whole).sources


def _known(one: Asked, which: NDArray) -> Asked:
    places = np.flatnonzero(which).tolist()
    return Asked(
        prompts=[one.prompts[i] for i in places],
        sources=[one.sources[i] for i in places],
        values=one.values[which],
    )


def of_pair(
    pair: Pair, answers: Mapping[str, Answers], alone: Mapping[str, VarianceComponents | None]
) -> VarianceComponents | None:
    """Judged as the difference is: pair by pair, or each side by itself.

    None: its sides are no pairs of runs, and yet some of their runs were asked the same prompts:
    what these do to both cancels, and nobody has counted how far.
    """
    names = pair.better.variant.name, pair.other.variant.name
    (a, b), (of_a, of_b) = ([found[name] for name in names] for found in (answers, alone))
    if of_a is None or of_b is None:
        return None
    of_seed = [(a[seed], b[seed]) for seed in pair.paired_on]
    if of_seed and all(x.prompts == y.prompts for x, y in of_seed):
        return noises([replace(x, values=x.values - y.values) for x, y in of_seed])
    both = crossed([*a.values(), *b.values()])
    if both is not None and min(len(a), len(b)) > 1:
        y, sources = both
        return shared_unpaired(y[: len(a)], y[len(a) :], sources)
    return None if asked(a) & asked(b) else unrelated(of_a, of_b)


def asked(answers: Answers) -> set[int]:
    """The prompts of all runs."""
    return {prompt for one in answers.values() for prompt in one.prompts}


def _cells(row: Row) -> tuple[str, ...]:
    n, found = ", ".join(map(str, row.seeds)), row.found
    if found is None:
        return row.name, n, *["-"] * 9
    edges = found.interval
    return (
        *(row.name, n, f"{found.asked:g}", number(found.mean), _error(found.here)),
        "counted" if found.own else _error(found.added),
        "-" if edges is None else interval(*edges),
        *(_error(found.seeds), _error(found.prompts)),
        "-" if found.enough is None else str(found.enough),
        {None: "-", True: "prompts", False: "seeds"}[found.by_prompts],
    )


def _error(variance: float | None) -> str:
    return number(None if variance is None else math.sqrt(variance))


def _notes(alone: Sequence[Row], between: Sequence[Row]) -> list[str]:
    notes = [
        "On these prompts: what the intervals of scores and differences count. Another set of as "
        "many prompts from the same sources adds to it (as squares add); counted: it is in there, "
        "for each seed was asked prompts of its own.",
        f"By prompts: by their choice and the answers to them. Prompts for half: so many of a "
        f"seed make it {SMALL:g} of what comes by seeds.",
    ]
    fewest = min(row.seeds[0] for row in alone)
    if fewest > 1:
        more = math.sqrt((fewest - 1) / stats.chi2.ppf((1 - LEVEL) / 2, fewest - 1))
        notes.append(f"At n = {fewest} seeds may differ up to {more:.1f} times as much as is seen.")
    unknown = [f"{row.name}: {row.why}" for row in (*alone, *between) if row.why]
    return [*notes, f"Not told apart: {'; '.join(unknown)}."] if unknown else notes


def bought(rows: Sequence[Row]) -> str:
    """Which noise is the larger one, and what to buy."""
    judged = [found.by_prompts for row in rows if (found := row.found) is not None]
    known = [by_prompts for by_prompts in judged if by_prompts is not None]
    if not known:
        return "Nothing says yet which noise is the larger one: that takes seeds that differ."
    of = "difference" if len(rows[0].seeds) > 1 else "variant"
    where = f"in all {len(known)} {of}s" if len(known) > 1 else f"in the one {of}"
    prompts, seeds = sum(known), len(known) - sum(known)
    if not prompts:
        return f"Seeds are the larger noise {where}: buy seeds, not prompts."
    more = "prompts (data.held_out, evaluation.prompts)"
    if not seeds:
        return f"Prompts are the larger noise {where}: buy {more} before seeds."
    first, then = ("seeds", more) if seeds >= prompts else (more, "seeds")
    return (
        f"Seeds are the larger noise in {seeds} of {len(known)} {of}s, prompts in the others: "
        f"buy {first} first, then {then}."
    )
