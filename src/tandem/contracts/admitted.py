"""Checks of declared facts against their annotations and the parameters of a component."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Domain = Literal["tokens", "steps", "pictures", "bounds"]  # what a policy can be trained on
DOMAINS = get_args(Domain)


def refuse_missing_numbers(component: Callable, **facts: Any) -> None:
    """Raise ValueError if a fact names a number that the component does not take, or that cannot be
    read from it once it is built."""
    named = [*(("units", number) for number in facts.get("units", ()))]
    ordered = ("rising", "not_above")
    named += [(fact, number) for fact in ordered for pair in facts.get(fact, ()) for number in pair]
    named += [("read_with", number) for number in facts.get("read_with", ())]
    named += [("read_with", number) for number, _ in facts.get("read_with", {}).values()]
    named += [("named_rewards", number) for number in facts.get("named_rewards", ())]
    alone = [(fact, facts.get(fact)) for fact in ("set_size", "horizon")]
    named += [(fact, number) for fact, number in alone if number is not None]
    if not named:
        return
    # The others are applied to what it is built with.
    read = [pair for pair in named if pair[0] not in (*ordered, "units")]
    if read and inspect.isclass(component) and not is_dataclass(component):
        fact, number = read[0]
        raise ValueError(
            f"{component.__qualname__}: {fact} names {number!r}, which cannot be read from this "
            "class; make it a dataclass, or a function"
        )
    parameters = inspect.signature(component).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name, number in named:
            refuse_unknown(f"{component.__qualname__}: {name}", number, parameters)


def refuse_unknown(what: str, given: object, known: Collection[object]) -> None:
    """Raise ValueError for a value that is not known, with the nearest or all known ones."""
    if given in known:
        return
    nearest = difflib.get_close_matches(str(given), [str(one) for one in known], 1, 0.5)
    said = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(map(str, known))}"
    raise ValueError(f"{what}: unknown {given!r}; {said}")


def refuse_other_kinds(record: Any) -> None:
    """Raise ValueError for a field that is no mapping, or no function, where it must be one."""
    for name, hint in _hints(type(record)).items():
        value = getattr(record, name)
        if get_origin(hint) is Mapping and not isinstance(value, Mapping):
            raise ValueError(f"{name}={value!r}: give a mapping")
        if Callable in get_args(hint) and not (value is None or callable(value)):
            raise ValueError(f"{name}={value!r}: give a function")


def refuse_unlisted(record: Any) -> None:
    """Raise ValueError for a field outside the `Literal` in its annotation."""
    for name, kinds in _list_names(type(record)).items():
        value = getattr(record, name)
        items = value.items() if isinstance(value, Mapping) else [(value,)]
        pairs = (pair for item in items for pair in zip(item, kinds, strict=True))
        for one, known in pairs:
            if known:
                refuse_unknown(name, one, known)


@functools.cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record, localns={"Bound": object})


@functools.cache
def _list_names(record: type) -> dict[str, list[tuple[object, ...]]]:
    """Field -> its allowed values; for a mapping, those of keys and of values; () for any."""
    found = {}
    for name, hint in _hints(record).items():
        kinds = get_args(hint) if get_origin(hint) is Mapping else [hint]
        if any(listed := [_values(kind) for kind in kinds]):
            found[name] = listed
    return found


def _values(hint: Any) -> tuple[object, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    inner = (
        [_values(one) for one in get_args(hint)] if get_origin(hint) in (Union, UnionType) else []
    )
    values = tuple(value for one in inner for value in one)
    return (*values, None) if values and type(None) in get_args(hint) else values
