"""The facts of a run: the choices and numbers of its configuration that are compared."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from tandem.record.reading.runs import Run
from tandem.settings.settings import key_of

RECIPE = "recipe"  # a choice
SEED = ".seed"  # the end of the key of a group's seed, by default that of the run


def facts_of(run: Run, *, fixed: Container[str] = ()) -> dict[str, object]:
    """The facts of a run read alone: seeds that equal the run's are taken to follow it, but for the
    keys of `fixed`."""
    own = {key: x for key, x in _read_compared(run).items() if key in fixed}
    return facts_of_runs([run])[0] | own


def facts_of_runs(runs: Sequence[Run], asked: Container[str] = ()) -> list[dict[str, object]]:
    """Choices by group and numbers by dotted key, without the seeds that follow that of the run.

    `asked`: keys that count as well, although seeds of one configuration may differ in them.

    data.seed=0 in a run with seed=0 may be fixed or follow. It is fixed if runs of other seeds
    have it as well, unless in one of its own configuration data.seed follows.
    """
    every = [_read_compared(run, asked) for run in runs]
    alike = [_describe_without_seeds(fact) for fact in every]
    seeds = [
        (own, key, str(x), is_own_seed(key, x, run))
        for own, run, fact in zip(alike, runs, every, strict=True)
        for key, x in fact.items()
        if key.endswith(SEED)
    ]
    fixed = {(key, x) for _, key, x, is_own in seeds if not is_own}
    follow = {(own, key) for own, key, x, is_own in seeds if is_own and (key, x) not in fixed}
    return [
        {
            key: x
            for key, x in fact.items()
            if not is_own_seed(key, x, run) or ((key, str(x)) in fixed and (own, key) not in follow)
        }
        for own, run, fact in zip(alike, runs, every, strict=True)
    ]


def is_own_seed(key: str, value: object, run: Run) -> bool:
    """Whether the key is that of a seed which equals the run's."""
    return key.endswith(SEED) and value == run.seed


def _read_compared(run: Run, asked: Container[str] = ()) -> dict[str, object]:
    choices = {name: x for name, x in run.config.get("choices", {}).items() if name != RECIPE}
    facts = dict(iterate_flat(run.config)) | choices
    return {key: x for key, x in facts.items() if key in asked or key_of(key).compared}


def _describe_without_seeds(facts: Mapping[str, object]) -> str:
    return str(sorted((key, str(x)) for key, x in facts.items() if not key.endswith(SEED)))


def recipe_of(run: Run) -> str | None:
    """The recipe that the run used; None: it used none."""
    return run.config.get("choices", {}).get(RECIPE)


def iterate_flat(node: object, where: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of a configuration by dotted key; a list is one leaf."""
    if isinstance(node, Mapping) and node:
        for name, item in node.items():
            yield from iterate_flat(item, f"{where}.{name}" if where else str(name))
    else:
        yield where, tuple(node) if isinstance(node, list) else node
