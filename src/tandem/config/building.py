"""Construction of objects from configuration, which happens only here."""

from __future__ import annotations

import functools
from typing import Any

from omegaconf import DictConfig

from tandem.config.binding import Call, convert
from tandem.config.plain import key_of, to_plain


def build(node: DictConfig | dict[str, Any], where: str = "") -> Any:
    """The objects of a node's `_target_`s, built innermost first. Constructors get plain values.

    `where` is the key that messages name; a part of a configuration has its own.
    """
    return make(convert(to_plain(node), Any, where or key_of(node)))


def make(value: Any) -> Any:
    """Make the bound calls in a tree of calls, records, lists and mappings."""
    match value:
        case Call(target, arguments, partial):
            made = {name: make(argument) for name, argument in arguments.items()}
            return functools.partial(target, **made) if partial else target(**made)
        case dict():
            return {name: make(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return type(value)(make(item) for item in value)
    return value
