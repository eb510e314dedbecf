"""The table of noise: the uncertainty from seeds and from prompts, and which to add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from tandem.compare.pairs import Pair
from tandem.compare.prompt_noise import (
    Answers,
    estimate_components,
    estimate_difference,
    read_answers,
)
from tandem.compare.scores import Scored, rank
from tandem.compare.statistics.intervals import FEWEST, LEVEL
from tandem.compare.statistics.variance_components import SMALL, VarianceComponents
from tandem.compare.table import Table
from tandem.compare.tables import by_size
from tandem.compare.texts import format_edges, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A variant, or a difference of two."""

    name: str
    seeds: Sequence[int]  # n, of each side
    found: VarianceComponents | None
    why: str = ""  # reason why `found` is None; "" if the row of a side gives it


def table_noises(variants: Sequence[Scored], pairs: Sequence[Pair], metric: str) -> Table | None:
    """The table; None if no run stored scores per prompt, or if every source has a single prompt,
    so that any other set would contain the same prompts."""
    ordered = rank(variants)
    answers = {one.variant.name: read_answers(one, metric) for one in ordered}
    alone = [_describe_variant(one, answers[one.variant.name]) for one in ordered]
    if all(row.found is None for row in alone):
        return None
    of_name = {row.name: row.found for row in alone}
    between = [_describe_pair(pair, answers, of_name) for pair in sorted(pairs, key=by_size)]
    return Table(
        name="noises",
        title=f"{metric}: noise of seeds and noise of prompts, as standard errors of the mean",
        columns=(
            *("variant or difference", "n", "prompts", "mean", "error on these prompts"),
            *("added by other prompts", "95 % on other prompts", "error from seeds"),
            *("error from prompts", "prompts needed", "larger error"),
        ),
        rows=[_cells(row) for row in (*alone, *between)],
        notes=[*_notes(alone, between), advise(between or alone)],
    )


def _describe_variant(one: Scored, answers: Answers) -> Row:
    found, why = estimate_components([*answers.values()]), ""
    if not answers:
        why = "its runs stored no scores per prompt"
    elif found is None:
        why = "each source has a single prompt, so another set would be the same"
    return Row(name=one.variant.name, seeds=[len(one.scores)], found=found, why=why)


def _describe_pair(
    pair: Pair, answers: Mapping[str, Answers], alone: Mapping[str, VarianceComponents | None]
) -> Row:
    sides = pair.better, pair.other
    found = estimate_difference(pair, answers, alone)
    known = all(alone[side.variant.name] is not None for side in sides)
    why = "its sides share prompts but have no paired runs" if known and found is None else ""
    seeds = [len(pair.paired_on)] * 2 if pair.paired_on else pair.seeds
    return Row(
        name=" - ".join(side.variant.name for side in sides),
        seeds=seeds,
        found=found,
        why=why,
    )


def _cells(row: Row) -> tuple[str, ...]:
    n, found = ", ".join(map(str, row.seeds)), row.found
    if found is None:
        return row.name, n, *["-"] * 9
    edges = found.interval if min(row.seeds) >= FEWEST else None
    return (
        *(row.name, n, f"{found.n_prompts:g}", format_number(found.mean), _error(found.on_these)),
        "included" if found.own_prompts else _error(found.added),
        format_edges(edges),
        *(_error(found.seeds), _error(found.prompts)),
        "-" if found.enough is None else str(found.enough),
        {None: "-", True: "prompts", False: "seeds"}[found.by_prompts],
    )


def _error(variance: float | None) -> str:
    return format_number(None if variance is None else math.sqrt(variance))


def _notes(alone: Sequence[Row], between: Sequence[Row]) -> list[str]:
    notes = [
        "Error on these prompts: the standard error behind the intervals of scores and "
        "differences. Added by other prompts: the error that as many other prompts from the same "
        "sources would add, in quadrature; included: each seed had its own prompts, so the error "
        "on these prompts contains it.",
        "Error from prompts: from their choice and from the answers to them. Prompts needed: the "
        f"number per seed that reduces it to {SMALL:g} of the error from seeds.",
    ]
    fewest = min(row.seeds[0] for row in alone)
    if fewest > 1:
        more = math.sqrt((fewest - 1) / special.chdtri(fewest - 1, (1 + LEVEL) / 2))
        notes.append(
            f"At n = {fewest} the true spread of seeds may be up to {more:.1f} times the observed."
        )
    unknown = [f"{row.name}: {row.why}" for row in (*alone, *between) if row.why]
    return [*notes, f"Not separated: {'; '.join(unknown)}."] if unknown else notes


def advise(rows: Sequence[Row]) -> str:
    """A sentence on the larger noise: whether to add seeds or prompts."""
    judged = [found.by_prompts for row in rows if (found := row.found) is not None]
    known = [by_prompts for by_prompts in judged if by_prompts is not None]
    if not known:
        return "It is not known which noise is larger: that takes seeds whose scores differ."
    of = "difference" if len(rows[0].seeds) > 1 else "variant"
    where = f"in all {len(known)} {of}s" if len(known) > 1 else f"in the only {of}"
    prompts, seeds = sum(known), len(known) - sum(known)
    if not prompts:
        return f"Seeds are the larger noise {where}: add seeds, not prompts."
    more = "prompts (data.held_out, evaluation.prompts)"
    if not seeds:
        return f"Prompts are the larger noise {where}: add {more} before seeds."
    first, then = ("seeds", more) if seeds >= prompts else (more, "seeds")
    return (
        f"Seeds are the larger noise in {seeds} of {len(known)} {of}s, prompts in the others: "
        f"add {first} first, then {then}."
    )
