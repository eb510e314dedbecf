"""A node of the configuration bound to the signature of its target, its values to the annotations.

Binding calls nothing: `check` stops here, and `build` makes what was bound.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import math
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from inspect import Parameter
from operator import le, lt
from pathlib import Path
from typing import Any, NoReturn

from tandem.config.names import ConfigError, UnknownKeyError, WrongValueError, unknown
from tandem.config.signatures import (
    ROWS,
    annotations_of_items,
    describe,
    is_callable,
    limits,
    member_of,
    options,
    signature,
)
from tandem.config.targets import resolve
from tandem.contracts import defaults_of, facts_of
from tandem.settings.renamed import was_renamed

MARKS = ("_target_", "_partial_")
NESTED = "keys of a file are below {} unless it begins with '# @package _global_'"
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Call:
    """A call to be made, with its arguments. `partial`: its positional ones come at call time."""

    target: Callable
    arguments: Mapping[str, Any]
    partial: bool
    where: str  # its key


def bind(node: Mapping[str, Any], where: str) -> Call:
    """The call that a node with `_target_` describes.

    Raises ConfigError if its arguments do not match the signature.
    """
    for name in map(str, node):
        if name.startswith("_") and name not in MARKS:
            raise ConfigError(f"{where}: {name} is not supported; write {' and '.join(MARKS)} only")
    partial = convert(node.get("_partial_", False), bool, f"{where}._partial_")
    given = {name: value for name, value in node.items() if name not in MARKS}
    return bind_call(resolve(node["_target_"], where), given, where, partial=partial)


def bind_call(target: Callable, given: Mapping[str, Any], where: str, *, partial: bool) -> Call:
    """`given` as arguments of `target`: every name exists, nothing is missing, every value fits.

    Raises ConfigError for the first thing that is wrong.
    """
    parameters = signature(target).parameters.values()
    accepted = {p.name: p for p in parameters if p.kind in BY_NAME}
    if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
        _refuse_unknown(given, accepted, where, partial)
    for name in _list_unfilled(accepted, given, partial):
        raise ConfigError(f"{_key(where, name)} is missing: {target.__qualname__} needs it")
    hints = {name: parameter.annotation for name, parameter in accepted.items()}
    arguments = {n: convert(x, hints.get(n, Any), _key(where, n)) for n, x in given.items()}
    _refuse_falling(target, arguments, where)
    return Call(target, arguments, partial, where)


def _refuse_falling(target: Callable, arguments: Mapping[str, Any], where: str) -> None:
    """Raise for pairs of numbers whose first is not below the second, or above it."""
    numbers, facts = defaults_of(target) | dict(arguments), facts_of(target)
    orders = (facts.rising, lt, "must be below"), (facts.not_above, le, "must not be above")
    for pairs, holds, must in orders:
        for low, high in pairs:
            if not holds(numbers[low], numbers[high]):
                shown = " ".join(f"{_key(where, n)}={numbers[n]}" for n in (low, high))
                raise ConfigError(f"{shown}: the first {must} the second")


def _refuse_unknown(
    given: Mapping[str, Any], accepted: Mapping[str, Parameter], where: str, partial: bool
) -> None:
    keys = [_key(where, name) for name, p in accepted.items() if not (partial and comes_later(p))]
    for name in given:
        if name not in accepted:
            key, nested = _key(where, name), name == where.partition(".")[0]  # such as model.model
            said = f"unknown key {key!r}: {NESTED.format(where)}" if nested else None
            raise UnknownKeyError(said or unknown("key", key, keys))


def _list_unfilled(
    accepted: Mapping[str, Parameter], given: Mapping[str, Any], partial: bool
) -> list[str]:
    """Arguments that have no value and will get none at call time."""
    return [
        name
        for name, parameter in accepted.items()
        if parameter.default is Parameter.empty
        and name not in given
        and not (partial and comes_later(parameter))
    ]


def comes_later(parameter: Parameter) -> bool:
    """Whether the caller of a partial passes it: positional parameters, and a seed."""
    by_position = parameter.kind is Parameter.POSITIONAL_OR_KEYWORD or parameter.name == "seed"
    return by_position and parameter.default is Parameter.empty


def convert(value: object, annotation: object, where: str) -> Any:
    """`value` converted to its annotation: nodes to calls, lists to tuples, mappings to records.

    Raises ConfigError for a value of another type or out of bounds, and for nan.
    """
    converted = _convert(value, annotation, where)
    if isinstance(converted, float) and math.isnan(converted):
        raise WrongValueError(where, "=nan: set a number")
    for limit in limits(annotation):
        if (said := limit.violation(converted)) is not None:
            shown = list(converted) if isinstance(converted, tuple) else converted
            raise WrongValueError(where, f"={shown}: {said}")
    return converted


def _convert(value: object, annotation: object, where: str) -> Any:
    wanted = options(annotation)
    match value:
        case {"_target_": target}:
            call = bind(value, where)
            fits = not wanted or any(_produces(call, option) for option in wanted)
            return call if fits else _refuse(target, annotation, where)
        case _ if not wanted:
            return _convert_untyped(value, where)
        case Mapping():
            return _convert_mapping(value, annotation, where)
        case list():
            return _convert_sequence(value, annotation, where)
        case _ if any(_admits(value, option) for option in wanted):
            return _widen(value, wanted)
        case _ if (member := member_of(value, annotation)) is not None:
            return member
    return _refuse(value, annotation, where)


def _convert_untyped(value: object, where: str) -> Any:
    match value:
        case Mapping():
            return {name: convert(item, Any, _key(where, name)) for name, item in value.items()}
        case list():
            return [convert(item, Any, _key(where, i)) for i, item in enumerate(value)]
    return value


def _convert_mapping(value: Mapping[str, Any], annotation: object, where: str) -> Any:
    """A mapping, or the record whose fields it names."""
    for option in options(annotation):
        kind = typing.get_origin(option) or option
        if is_dataclass(kind):
            return bind_call(kind, value, where, partial=False)
        if kind in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
            of_key, of_item = typing.get_args(option) or (Any, Any)
            return {
                convert(name, of_key, where): convert(item, of_item, _key(where, name))
                for name, item in value.items()
            }
    return _refuse(dict(value), annotation, where)


def _convert_sequence(value: Sequence[Any], annotation: object, where: str) -> Any:
    for option in options(annotation):
        kind = typing.get_origin(option) or option
        if kind in ROWS:
            of_items = annotations_of_items(option, len(value))
            if len(of_items) != len(value):
                continue
            items = [
                convert(item, of_item, _key(where, i))
                for i, (item, of_item) in enumerate(zip(value, of_items, strict=True))
            ]
            return kind(items) if kind in (tuple, set, frozenset) else items
    return _refuse(list(value), annotation, where)


def _admits(value: object, option: object) -> bool:
    """Whether a scalar matches a single annotation. A bool is not a number."""
    if typing.get_origin(option) is typing.Literal:
        return any(type(value) is type(one) and value == one for one in typing.get_args(option))
    if option is float:
        return type(value) in (int, float)
    if inspect.isclass(option) and issubclass(option, os.PathLike):
        return isinstance(value, str)
    return type(value) is option


def _produces(call: Call, option: object) -> bool:
    """Whether the declared return type of a call is compatible with an annotation."""
    kind = typing.get_origin(option) or option
    if call.partial:
        return is_callable(option) or _is_protocol(kind)
    made = call.target if inspect.isclass(call.target) else signature(call.target).return_annotation
    made = typing.get_origin(made) or made
    if not inspect.isclass(made) or made is Parameter.empty or _is_protocol(kind):
        return True
    if is_callable(option):
        return any("__call__" in vars(owner) for owner in made.__mro__)
    return inspect.isclass(kind) and issubclass(made, kind)


def _is_protocol(kind: object) -> bool:
    return inspect.isclass(kind) and typing.Protocol in kind.__mro__


def _widen(value: object, wanted: Sequence[object]) -> object:
    """YAML writes 1 for 1.0, and a path as text."""
    if type(value) is int and int not in wanted:
        return float(value) if float in wanted else value
    return Path(value) if type(value) is str and Path in wanted and str not in wanted else value


def _refuse(value: object, annotation: object, where: str) -> NoReturn:
    if isinstance(value, str) and (moved := was_renamed(f"{where}={value}")) is not None:
        raise ConfigError(moved)
    advice = "; set one, or leave the key out" if value is None else ""
    raise WrongValueError(where, f": expected {describe(annotation)}, got {_show(value)}{advice}")


def _show(value: object) -> str:
    match value:
        case Mapping():
            return f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
        case str():
            return repr(value)
    return json.dumps(value, default=repr)


def _key(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
