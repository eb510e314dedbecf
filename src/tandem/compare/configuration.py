"""Differences between the configurations of variants: all of them, and those besides the key
that is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from tandem.compare.scores import Scored
from tandem.compare.table import Table
from tandem.compare.texts import NAMED, list_names
from tandem.record.reading.facts import facts_of, facts_of_runs, recipe_of
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import (
    TARGET,
    find_differing_keys,
    find_shared_names,
    shorten,
    shorten_functions,
    show_value,
)
from tandem.settings.settings import Settings

PARTIAL, COEF = "_partial_", "coef"
KEY, ABSENT = "key", "-"  # in the table of differences: head of its keys, cell of no value
OF_THE_RUN = {key.name for key in fields(Settings)}
Facts = Mapping[str, object]


def table_differences(variants: Sequence[Scored], by: Sequence[str] = ()) -> Table:
    """The keys in which the configurations differ, those of `by` among them; a part and its
    numbers share one cell."""
    every = shorten_functions(facts_of_runs([one.variant.runs[0] for one in variants], by))
    facts = [find_effective(fact) for fact in every]
    apart = find_differing_keys(facts)
    parts = [key.removesuffix(f".{TARGET}") for key in apart if key.endswith(f".{TARGET}")]
    folded = [part for part in parts if not any(is_below(part, other) for other in parts)]
    rows = [key for key in apart if not any(is_below(key, part) for part in folded)]
    keys = sorted({*rows, *folded})
    shared = find_shared_names(one.variant.runs[0].config for one in variants)
    names = [shorten(key, shared) for key in keys]
    cells = [[describe(fact, key, apart) for fact in facts] for key in keys]
    own = [one.name for one in variants]
    if len(own) > len(keys):  # the longer side goes down
        head, cells, names, own = "variant", list(zip(*cells, strict=True)), own, names
    else:
        head = KEY
    return Table(
        name="configuration",
        title="Differences between the configurations",
        columns=(head, *own),
        rows=[(name, *line) for name, line in zip(names, cells, strict=True)],
    )


def find_effective(facts: Facts) -> dict[str, object]:
    """The facts without keys that have no effect: how a part is built, a key of the algorithm or
    model that a key of the run overrides, and anything beside a coefficient of 0."""
    off = [
        key.removesuffix(COEF) for key, x in facts.items() if key.endswith(f".{COEF}") and x == 0
    ]
    return {
        key: value
        for key, value in facts.items()
        if not key.endswith(PARTIAL)
        and not is_taken_over(key, facts)
        and f"{key.replace('/', '.')}.{TARGET}" not in facts  # the choice of a part that is there
        and not any(key.startswith(node) and key != f"{node}{COEF}" for node in off)
    }


def is_taken_over(key: str, facts: Facts) -> bool:
    """Whether a key of the run has the same name and overrides the default of a part."""
    above, _, name = key.rpartition(".")
    return "." not in above and above != "" and name in OF_THE_RUN and name in facts


def is_below(key: str, part: str) -> bool:
    return key.startswith(f"{part}.")


def describe(facts: Facts, key: str, apart: Sequence[str]) -> str:
    """A value; or for a part the name of its function and the numbers that differ."""
    if key in facts:
        return show_value(facts[key])
    if f"{key}.{TARGET}" not in facts:
        return ABSENT
    name = show_value(facts[f"{key}.{TARGET}"])
    inside = [own for own in apart if is_below(own, key) and own in facts]
    names = {own: own.removeprefix(f"{key}.").removesuffix(f".{TARGET}") for own in inside}
    numbers = [
        f"{names[own]}={show_value(facts[own])}" for own in inside if own != f"{key}.{TARGET}"
    ]
    return f"{name}({', '.join(numbers)})" if numbers else name


def _get(key: str) -> Callable[[Facts], object]:
    return lambda facts: facts.get(key)


def count_updates(facts: Facts) -> object:
    """Optimiser steps of one iteration; None: a foreign configuration has no such numbers."""
    counts = [facts.get("epochs", 1), facts.get("num_minibatches", 1)]
    return math.prod(counts) if {*map(type, counts)} == {int} else None


# Facts that change a result whatever is compared, and the keys that define them.
BESIDE: dict[str, tuple[tuple[str, ...], Callable[[Facts], object]]] = {
    "learning rate": (("optimizer.lr",), _get("optimizer.lr")),
    "prompts per step": (("prompts_per_step",), _get("prompts_per_step")),
    "group size": (("group_size",), _get("group_size")),
    "updates per iteration": (("epochs", "num_minibatches"), count_updates),
    "iterations": (("iterations",), _get("iterations")),
    "warm-up": (("schedule.warmup",), _get("schedule.warmup")),
    "warm start": (("warm_start",), _get("warm_start")),
}


def find_confounds(variants: Sequence[Scored]) -> list[str]:
    """Sentences on differences besides the compared one: batch, rate, length, warm-up, recipe.

    The keys in the names of the variants are the compared ones.
    """
    runs = [one.variant.runs[0] for one in variants]
    facts = [facts_of(run) for run in runs]
    names = [one.variant.everywhere or one.name for one in variants]
    words = [word.partition("=")[0] for name in names for word in name.split(", ")]
    compared, said = {*words}, []
    for label, (keys, read) in BESIDE.items():
        values = [show_value(read(fact)) for fact in facts]
        if not compared & {*keys, *(shorten(key, ()) for key in keys)} and len(set(values)) > 1:
            said.append(f"{label} ({list_values(names, values)})")
    sentences = [f"The variants also differ in: {', '.join(said)}."] if said else []
    return [*compare_plugins(variants), *sentences, *compare_recipes(runs, names)]


def compare_plugins(variants: Sequence[Scored]) -> list[str]:
    """A sentence for each plugin whose files changed between the starts of the runs."""
    versions: dict[str, dict[str, list[str]]] = {}
    runs = [(f"{one.name} seed {run.seed}", run) for one in variants for run in one.variant.runs]
    for said, run in runs:
        for plugin, hashes in run.plugins.items():
            for sha in sorted(hashes):
                versions.setdefault(plugin, {}).setdefault(sha, []).append(said)
    return [
        f"Plugin {plugin} changed between these runs, whose numbers are of different code: "
        + "; ".join(
            f"{sha} in {', '.join(own) if len(own) <= NAMED else f'{len(own)} runs'}"
            for sha, own in shas.items()
        )
        + "."
        for plugin, shas in versions.items()
        if len(shas) > 1
    ]


def list_values(names: Sequence[str], values: Sequence[str]) -> str:
    """Names and values, for example "rloo 1, others 2", the most common value last; the number of
    more than four values, which the table of differences lists."""
    names = list(dict.fromkeys(zip(names, values, strict=True)))
    by_value: dict[str, list[str]] = {}
    for name, value in names:
        by_value.setdefault(value, []).append(name)
    if len(by_value) > NAMED:
        return f"{len(by_value)} values"
    *few, (most, _) = sorted(by_value.items(), key=lambda item: len(item[1]))
    last = (
        [f"others {most}"] if few and len(by_value[most]) > 1 else [f"{by_value[most][0]} {most}"]
    )
    return ", ".join([*(f"{list_names(own, len(names))} {value}" for value, own in few), *last])


def compare_recipes(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """A sentence if some variants used a recipe and others the defaults; else []."""
    without = list(
        dict.fromkeys(n for run, n in zip(runs, names, strict=True) if not recipe_of(run))
    )
    if not without or len(without) == len(set(names)):
        return []
    has = "has no recipe" if len(without) == 1 else "have no recipe"
    return [
        f"{list_names(without, len(set(names)))} {has} and used the defaults; the others used "
        "tuned numbers, so the comparison includes the tuning."
    ]
