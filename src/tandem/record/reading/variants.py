"""Variants: groups of runs that differ only in the seed, their names and their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tandem.record.reading import tasks
from tandem.record.reading.facts import (
    RECIPE,
    facts_of_runs,
    is_own_seed,
    iterate_flat,
    recipe_of,
)
from tandem.record.reading.runs import Run
from tandem.settings.settings import KEYS, key_of

ALGORITHM = "algorithm"  # a choice
TARGET = "_target_"  # of a part: its function
NAME = "name"  # of a group, as in data.name: says nothing without it
SHOWN = 3  # keys in a sentence beside the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Runs of one configuration on one task, which differ only in the seed."""

    name: str
    runs: Sequence[Run]  # by seed
    task: str = ""  # "": all runs have the same one
    everywhere: str = ""  # the name of the configuration without the task

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


def group_runs(
    runs: Sequence[Run], by: Sequence[str] = (), task: Sequence[str] = ()
) -> list[Variant]:
    """Runs grouped by configuration, in their order, and named by their differences.

    `by`: choices (algorithm) or keys (optimizer.lr) that distinguish variants; `task`: those that
    distinguish tasks. Both may name keys in which seeds of one configuration may differ, such as
    trainer.devices. Raises ValueError if a variant has a seed twice, if `by` puts different
    configurations into one variant, or if no configuration has a key.
    """
    facts = shorten_functions(facts_to_name(runs, (*by, *task)))
    for option, keys in (("by", by), ("task", task)):
        for key in keys:
            if not any(key in fact for fact in facts):
                raise ValueError(f"{option}={key}: no run has such a choice or key")
    which = tasks.find_task_keys(facts, by=by, task=task)
    of_task = [tasks.name_task(fact, which) for fact in facts]
    beside = tasks.find_brought_keys(facts, of_task, which)
    kept = [{key: x for key, x in fact.items() if key not in beside} for fact in facts]
    shared = find_shared_names(run.config for run in runs)
    keys = list(by) or choose_naming_keys(runs, kept, shared)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run, fact, own in zip(runs, facts if by else kept, of_task, strict=True):
        groups.setdefault((name_variant(fact, keys, shared), own), []).append(run)
    if by:
        for (name, _), own in groups.items():
            _refuse_mixed(name, own, by)
    return [_make_variant(*names, own) for names, own in groups.items()]


def facts_to_name(runs: Sequence[Run], asked: Collection[str]) -> list[dict[str, object]]:
    """Facts that may name runs, and whether each has a recipe if only some have one."""
    facts, has_recipe = facts_of_runs(runs, asked), [recipe_of(run) is not None for run in runs]
    if all(has_recipe) or not any(has_recipe):
        return facts
    said = {True: "with recipe", False: "no recipe"}
    return [fact | {RECIPE: said[has]} for fact, has in zip(facts, has_recipe, strict=True)]


def shorten_functions(facts: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The facts with functions of parts by name alone, without modules. One that another function
    at its key shares, or that repeats the key, as in loss=my_idea.loss, keeps them."""
    pairs = {(key, str(x)) for fact in facts for key, x in fact.items() if key.endswith(TARGET)}
    count = Counter((key, _last(path)) for key, path in pairs)
    short = {
        (key, path): _last(path)
        for key, path in pairs
        if count[key, _last(path)] == 1 and not key.endswith(f".{_last(path)}.{TARGET}")
    }
    return [{key: short.get((key, str(x)), x) for key, x in fact.items()} for fact in facts]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _refuse_mixed(name: str, runs: Sequence[Run], by: Sequence[str]) -> None:
    """Raise for a variant of several configurations: its spread would not be that of seeds."""
    facts = shorten_functions(facts_of_runs(runs))
    if not find_differing_keys(facts):
        return
    shared = find_shared_names(run.config for run in runs)
    first, *more = choose_naming_keys(runs, facts, shared)
    values = " and ".join(dict.fromkeys(str(fact.get(first, "-")) for fact in facts))
    cut = f" and {len(more) - SHOWN} more" if len(more) > SHOWN else ""
    way = "leave by= out" if cut else f"set by={','.join([*by, first, *more])}"
    raise ValueError(
        f"by={','.join(by)}: runs of {name} differ in more than the seed: "
        f"{', '.join([f'{first} ({values})', *more[:SHOWN]])}{cut}; {way}"
    )


def _make_variant(everywhere: str, task: str, runs: Sequence[Run]) -> Variant:
    name = f"{everywhere}, {task}" if task else everywhere
    own = _refuse_repeated(name, sorted(runs, key=lambda run: run.seed))
    return Variant(name=name, runs=own, task=task, everywhere=everywhere)


def name_variant(fact: Mapping[str, object], keys: Sequence[str], shared: Collection[str]) -> str:
    """The name of a variant: the algorithm by its name alone, other facts as key=value, where a
    key is shortened and a part is named by its function."""
    said = [
        str(fact[key])
        if key in (ALGORITHM, RECIPE)
        else f"{shorten(key.removesuffix(f'.{TARGET}'), shared)}={show_value(fact[key])}"
        for key in keys
        if key in fact
    ]
    return ", ".join(said) or str(fact.get(ALGORITHM, "all"))


def show_value(value: object) -> str:
    """The value as text; a function of Tandem without its modules."""
    text = str(value)
    return _last(text) if text.startswith("tandem.") else text


def shorten(key: str, shared: Collection[str]) -> str:
    """A key without its group, as in kl.coef, unless it needs the group or `shared` has it."""
    short = _without_group(key)
    return key if short == NAME or short in shared else short


def find_shared_names(configs: Iterable[Mapping[str, object]]) -> set[str]:
    """The names that occur in several groups, such as `every` in evaluations and checkpoints."""
    nodes = {node for config in configs for node in iterate_nodes(config)}
    return {name for name, count in Counter(map(_without_group, nodes)).items() if count > 1}


def _without_group(key: str) -> str:
    return key.replace("/", ".").partition(".")[2] or key


def choose_naming_keys(
    runs: Sequence[Run], facts: Sequence[Mapping[str, object]], shared: Collection[str]
) -> list[str]:
    """Keys that name variants: typed keys on which runs differ, then others that add names."""
    apart = find_differing_keys(facts)
    typed = dict.fromkeys(
        text.lstrip("+~").partition("=")[0].partition("@")[0]
        for run in runs
        for text in run.config.get("overrides", ())
    )
    keys = [key for key in typed if key in apart]
    rest = [key for key in apart if key not in keys]
    for key in rest:  # a key that distinguishes nothing now will not do so later
        if count_names(facts, [*keys, key], shared) > count_names(facts, keys, shared):
            keys.append(key)
    return keys


def count_names(
    facts: Sequence[Mapping[str, object]], keys: Sequence[str], shared: Collection[str]
) -> int:
    """The number of different names that these keys give."""
    return len({name_variant(fact, keys, shared) for fact in facts})


def find_differing_keys(facts: Sequence[Mapping[str, object]]) -> list[str]:
    """Keys on which some facts differ, sorted."""
    every = {key for fact in facts for key in fact}
    return sorted(key for key in every if len({str(fact.get(key)) for fact in facts}) > 1)


def _refuse_repeated(name: str, runs: list[Run]) -> list[Run]:
    for one, other in pairwise(runs):
        if one.seed == other.seed:
            raise ValueError(
                f"{name} has seed {one.seed} twice: {one.folder} and {other.folder}. Two runs of "
                "one seed are not replicates: leave one out, or distinguish them with by=KEY"
            )
    return runs


def iterate_nodes(node: object, where: str = "") -> Iterator[str]:
    """The dotted keys of a configuration, leaves or not."""
    for name, item in node.items() if isinstance(node, Mapping) else ():
        key = f"{where}.{name}" if where else str(name)
        yield key
        yield from iterate_nodes(item, key)


def differences(one: Run, other: Run) -> dict[str, tuple[object, object]]:
    """Keys on which two configurations differ, with both values."""
    a, b = facts_of_runs([one, other])
    keys = dict.fromkeys((*a, *b))
    return {key: (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}


def find_shared_seeds(one: Variant, other: Variant) -> list[int]:
    """The seeds that both variants have, by which they are paired; [] if they are not.

    The design decides it, never the results: the same seeds, each from the same first weights. A
    seed determines the prompts and the noise of a run, so a pair differs by the variant alone.
    """
    theirs = {run.seed: run for run in other.runs}
    both = [(run, theirs[run.seed]) for run in one.runs if run.seed in theirs]
    if any(start_of(own) != start_of(its) for own, its in both):
        return []
    return [run.seed for run, _ in both]


def start_of(run: Run) -> tuple[object, ...]:
    """The part of the configuration that determines the first weights, without the seed."""
    leaves = dict(iterate_flat({key: run.config.get(key) for key in KEYS if key_of(key).start}))
    return tuple(
        (key, x) for key, x in leaves.items() if key_of(key).start and not is_own_seed(key, x, run)
    )
