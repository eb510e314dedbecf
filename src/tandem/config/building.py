"""Construction of objects from configuration, which happens only here."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from tandem.config.binding import Call, convert
from tandem.config.plain import key_of, to_plain


def build(node: DictConfig | dict[str, Any], where: str = "") -> Any:
    """The objects of a node's `_target_`s, built innermost first. Constructors get plain values.

    `where` is the key that messages name; a part of a configuration has its own.
    """
    where = where or key_of(node)
    return make(convert(to_plain(node), Any, where), where)


def make(value: Any, where: str = "") -> Any:
    """Make the bound calls in a tree of calls, records, lists and mappings at the key `where`."""
    match value:
        case Call(target, arguments, partial):
            made = {name: make(item, f"{where}.{name}") for name, item in arguments.items()}
            if partial:
                return functools.partial(target, **made)
            with _naming(where, target):
                return target(**made)
        case dict():
            return {name: make(item, f"{where}.{name}") for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return type(value)(make(item, where) for item in value)
    return value


@contextmanager
def _naming(where: str, target: Callable) -> Iterator[None]:
    """A context for an option within an option of its own group, as data.of.NAME.data: a message
    that names data.path, the key of an option that was chosen alone, names the key here."""
    try:
        yield
    except ValueError as error:
        group = where.rpartition(".")[2]
        if where.startswith(f"{group}."):
            # A file may be called data.csv: only what the target takes is a key.
            names = "|".join(inspect.signature(target).parameters)
            key = rf"(?<![\w./]){group}(?=\.({names})\b)"
            error.args = (re.sub(key, lambda _: where, str(error)),)
        raise
