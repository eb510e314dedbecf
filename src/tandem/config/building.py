"""Construction of objects from configuration, which happens only here."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from omegaconf import DictConfig

from tandem.config.binding import Call, convert
from tandem.config.plain import key_of, to_plain

PART = re.compile(r"(?:model|rollout)\.(\w+)")  # a part of a model or sampler, maybe of a chain


def build(node: DictConfig | dict[str, Any], where: str = "") -> Any:
    """The objects of a node's `_target_`s, built innermost first. Constructors get plain values.

    `where` is the key that messages name; a part of a configuration has its own.
    """
    return make(convert(to_plain(node), Any, where or key_of(node)))


def make(value: Any) -> Any:
    """Make the bound calls in a tree of calls, records, lists and mappings."""
    match value:
        case Call(target, arguments, partial, where):
            with _keys_at(where, target):
                made = {name: make(argument) for name, argument in arguments.items()}
                return functools.partial(target, **made) if partial else target(**made)
        case dict():
            return {name: make(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return type(value)(make(item) for item in value)
    return value


def _keys_at(where: str, target: Callable) -> AbstractContextManager[None]:
    """A context in which errors have the keys of this place: constructors write them as if their
    option were chosen alone, not in a chain or a mixture."""
    group = where.rpartition(".")[2]
    if where.startswith(f"{group}.") and inspect.signature(target).parameters:
        return _keys_of_option(group, where, target)
    if (found := PART.fullmatch(where)) is None:
        return nullcontext()
    from tandem.types import SEGMENTS  # imports torch

    if found[1] not in SEGMENTS:
        return nullcontext()
    from tandem.policies.chain.keys import keys_of  # imports both models, as the chain has

    return keys_of(found[1])


@contextmanager
def _keys_of_option(group: str, where: str, target: Callable) -> Iterator[None]:
    """Of an option within an option of its own group, such as data.of.NAME.data: for data.path."""
    try:
        yield
    except ValueError as error:
        # A file may be called data.csv: only what the target takes is a key.
        names = "|".join(inspect.signature(target).parameters)
        key = rf"(?<![\w./]){group}(?=\.({names})\b)"
        error.args = (re.sub(key, lambda _: where, str(error)),)
        raise
