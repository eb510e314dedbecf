"""Signatures of functions and classes with evaluated annotations."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from tandem.contracts import facts_of
from tandem.contracts.bounds import Limit

ROWS = (list, tuple, set, frozenset, Sequence, Iterable, Collection)


def signature(target: Callable) -> Signature:
    """Like inspect.signature, with strings evaluated; names imported for typing only become Any."""
    return _signature(target, facts_of(target).option is not None)


@functools.cache
def _signature(target: Callable, registered: bool) -> Signature:
    found = inspect.signature(target)
    scope = _collect_names(target)
    parameters = [
        parameter.replace(annotation=_annotation_of(parameter, registered, scope))
        for parameter in found.parameters.values()
    ]
    answer = _evaluate(found.return_annotation, scope)
    return found.replace(parameters=parameters, return_annotation=answer)


def _annotation_of(parameter: Parameter, registered: bool, scope: Mapping[str, Any]) -> object:
    """The evaluated annotation, which admits the default None; without one, of a registered
    function, what the type of the default admits."""
    if parameter.annotation is not Parameter.empty:
        found = _evaluate(parameter.annotation, scope)
        if parameter.default is not None:
            return found
        try:
            return typing.Union[found, None]  # noqa: UP007, as `|` fails for `x: any = None`
        except TypeError:  # no type, such as [int]
            return Any
    if not registered:
        return Parameter.empty
    if isinstance(parameter.default, enum.Enum):  # recorded as text
        return type(parameter.default)
    if isinstance(parameter.default, os.PathLike):
        return Path
    # A default of 1 may be set to 0.5, and stays an integer until it is.
    kinds = {bool: bool, int: float | int, float: float, tuple: tuple[Any, ...]}
    return kinds.get(type(parameter.default), Parameter.empty)


def options(annotation: object) -> tuple[object, ...]:
    """The alternatives of an annotation; none if it admits anything."""
    if annotation in (Any, object, Parameter.empty) or isinstance(annotation, typing.TypeVar):
        return ()
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return options(arguments[0])
    if origin not in (typing.Union, types.UnionType):
        return (annotation,)
    members = [options(argument) for argument in arguments]
    return sum(members, ()) if all(members) else ()


def member_of(value: object, annotation: object) -> enum.Enum | None:
    """The member of an enum that a configuration names, by name or by value."""
    kinds = (one for one in options(annotation) if is_enum(one))
    found = (
        one
        for kind in kinds
        for one in kind
        if value == one.name or (type(value) is not bool and value == one.value)
    )
    return next(found, None)


def is_enum(option: object) -> bool:
    return inspect.isclass(option) and issubclass(option, enum.Enum)


def mapping_of(annotation: object) -> object:
    """The mapping that an annotation admits, such as Mapping[str, float]; None: it admits none."""
    kinds = (one for one in options(annotation) if typing.get_origin(one) in (dict, Mapping))
    return next(kinds, None)


def annotations_of_items(option: object, length: int) -> list[object]:
    """The annotation of each item of a list with this many of them."""
    arguments = typing.get_args(option)
    if typing.get_origin(option) is tuple and Ellipsis not in arguments:
        return list(arguments)
    return [arguments[0] if arguments else Any] * length


def record_of(annotation: object) -> type | None:
    """The dataclass that an annotation admits; None: it admits none."""
    kinds = (annotation, *options(annotation))
    return next((one for one in kinds if inspect.isclass(one) and is_dataclass(one)), None)


def limits(annotation: object) -> list[Limit]:
    """The bounds in an annotation and in its alternatives."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return [*limits(arguments[0]), *(x for x in arguments[1:] if isinstance(x, Limit))]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [limit for argument in arguments for limit in limits(argument)]
    return []


def describe(annotation: object) -> str:
    """An annotation in the words of an error message, without what no configuration can hold."""
    from torch import Tensor  # slow to import, and composing needs none

    return " or ".join(_word(one) for one in options(annotation) if one is not Tensor)


def _word(option: object) -> str:
    if option is type(None):
        return "null"
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(option))
    if is_callable(option):
        return "a function (_target_, with _partial_: true)"
    if is_enum(option):
        return " or ".join(option.__members__)
    kind = typing.get_origin(option) or option
    if kind in ROWS:
        items = [describe(item) for item in typing.get_args(option) if item is not Ellipsis]
        if kind is tuple and Ellipsis not in typing.get_args(option):
            return f"[{', '.join(items)}]"
        return f"a list of {', '.join(items) or 'anything'}"
    if kind in (dict, Mapping):
        return f"a mapping of {' to '.join(map(describe, typing.get_args(option))) or 'anything'}"
    if inspect.isclass(kind) and is_dataclass(kind):
        return f"{{{', '.join(f'{name}: ...' for name in signature(kind).parameters)}}}"
    return option.__name__ if inspect.isclass(option) else str(option).replace("typing.", "")


def is_callable(option: object) -> bool:
    return (typing.get_origin(option) or option) in (Callable, typing.Callable)


def _collect_names(target: Callable) -> dict[str, Any]:
    if not inspect.isclass(target):
        return inspect.unwrap(target).__globals__
    owners = [sys.modules[owner.__module__] for owner in reversed(target.__mro__)]
    return {name: value for owner in owners for name, value in vars(owner).items()}


def _evaluate(annotation: object, scope: Mapping[str, Any]) -> object:
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=dict(scope), include_extras=True)["it"]
    except NameError:
        return Any
