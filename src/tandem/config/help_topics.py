"""Help page of a group or key: its options, and the type, value, bound and meaning of keys."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf

from tandem.config.binding import BY_NAME, comes_later
from tandem.config.help import Described, groups_of
from tandem.config.help_key import Key, describe_key
from tandem.config.meanings import read_file_comments, read_meanings
from tandem.config.names import ConfigError, unknown
from tandem.config.options_in_use import find_setter
from tandem.config.overrides import parse
from tandem.config.plain import FILLED_IN, target_of
from tandem.config.signatures import mapping_of, record_of, signature
from tandem.config.targets import resolve
from tandem.config.values import refuse_unknown_key
from tandem.settings.settings import Settings

# Where formulas and lists of arguments begin in docstrings of other libraries.
ELSEWHERE = re.compile(r"^\s*(?:Args:|Arguments:|Parameters:?|\.\. \w+::)", re.M)


def topic(
    name: str,
    overrides: Sequence[str],
    cfg: DictConfig,
    chosen: Mapping[str, str | None],
    conf: Path,
    plugins: Described,
) -> str:
    """The page of a group or key of `cfg`, which `overrides` compose. Raises ConfigError for a name
    that is neither."""
    dotted = name.strip("/.").replace("/", ".")
    groups = {"experiment": {}, "recipe": {}} | groups_of(conf, plugins)
    known = {group.replace("/", "."): group for group in groups}
    tree = OmegaConf.to_container(cfg, resolve=True)
    keys = list(_below(dotted, tree, chosen, conf))
    own = None if keys else find_key(dotted, tree, chosen, conf)
    group = known.get(dotted)
    if group is None and own is not None:
        above = _above(dotted, tree)[0]
        page = describe_key(
            own,
            conf,
            target=above.get("_target_"),
            chosen=chosen,
            setter=find_setter(overrides, dotted, own.value),
        )
        return "\n\n".join([page, *_docstring(above)]) + "\n"
    if group is None and not keys:
        _refuse_unknown(name, dotted, cfg, groups)
    parts = [] if group is None else [_options(group, groups[group], chosen.get(group))]
    if keys or own is not None:
        shown = keys if own is None else [own]
        parts.append("Keys (value, type, bound, meaning):\n" + _align(shown))
    parts += _docstring(_at(tree, dotted))
    inner = [other for other in groups if group is not None and other.startswith(f"{group}/")]
    if inner:
        parts.append(
            "\n".join(["Groups inside:", *(f"  --help {other}" for other in sorted(inner))])
        )
    return "\n\n".join(parts) + "\n"


def _refuse_unknown(name: str, dotted: str, cfg: DictConfig, groups: Described) -> NoReturn:
    """Raise for a name that is neither group nor key, as the command line does for a key."""
    if "." in dotted:
        refuse_unknown_key(parse([f"{dotted}=null"])[0], cfg, groups)
    tree = OmegaConf.to_container(cfg, resolve=True)
    names = dict.fromkeys([*(group.replace("/", ".") for group in groups), *_names(tree)])
    raise ConfigError(unknown("group or key", name, names))


def _align(keys: Sequence[Key]) -> str:
    width = max(len(key.assignment) for key in keys)
    return "\n".join(f"  {key.assignment:<{width}}  {key.meaning}" for key in keys)


def _options(group: str, described: Mapping[str, str], chosen: str | None) -> str:
    rows = [
        f" {'*' if name == chosen else ' '}{name:<24} {described[name]}".rstrip()
        for name in sorted(described)
    ]
    star = "* is chosen here" if chosen in described else "none is chosen here"
    return "\n".join([f"{group}=... has {len(rows)} options ({star}):", *rows])


def _below(
    dotted: str, tree: Mapping, chosen: Mapping[str, str | None], conf: Path
) -> Iterator[Key]:
    """The keys of the node of this name; none of a key that is no node."""
    comments = read_file_comments(dotted, chosen, conf)
    node, annotation = _at(tree, dotted), _annotation(dotted, tree)
    for name, (own, default, said) in _arguments(node, annotation).items():
        value = node.get(name, default)
        place = f"{dotted}.{name}"
        yield Key(name=place, value=value, annotation=own, said=comments.get(place) or said)


def find_key(
    dotted: str, tree: Mapping, chosen: Mapping[str, str | None], conf: Path
) -> Key | None:
    """The key of this name, which may be at its default; None: there is none."""
    node, last = _at(tree, dotted), dotted.rpartition(".")[2]
    beside = _arguments(*_above(dotted, tree))
    if node is ABSENT and last not in beside:
        return None
    own, default, said = beside.get(last, (typing.Any, inspect.Parameter.empty, ""))
    said = read_file_comments(dotted, chosen, conf).get(dotted) or said
    return Key(
        name=dotted,
        value=default if node is ABSENT else node,
        annotation=own,
        said=said or _describe_entry(dotted, tree, chosen, conf),
        default=default,
    )


def _describe_entry(
    dotted: str, tree: Mapping, chosen: Mapping[str, str | None], conf: Path
) -> str:
    """The meaning of a key whose name a user chose: that of its mapping. "": it is no such key."""
    parent = dotted.rpartition(".")[0]
    node, annotation = _above(dotted, tree)
    if "_target_" in node or mapping_of(annotation) is None:
        return ""
    whole = find_key(parent, tree, chosen, conf)
    return f"one of {parent.rpartition('.')[2]}: {whole.said}" if whole.said else ""


def _above(dotted: str, tree: Mapping) -> tuple[Mapping, object]:
    """The node that has the key, and its annotation."""
    parent = dotted.rpartition(".")[0]
    node = _at(tree, parent) if parent else tree
    known = node if isinstance(node, Mapping) else {}
    return known, _annotation(parent, tree) if parent else Settings


class Absent:
    """No such key."""


ABSENT = Absent()


def _at(tree: object, dotted: str) -> object:
    for part in dotted.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


def _annotation(dotted: str, tree: Mapping) -> object:
    """The annotation of a key, from the signatures on its path, starting at `Settings`."""
    node: object = tree
    kind: object = Settings
    for part in dotted.split("."):
        arguments = _arguments(node, kind)
        kind = arguments[part][0] if part in arguments else typing.Any
        node = _at(node, part)
    return kind


def _arguments(node: object, annotation: object) -> dict[str, tuple[object, object, str]]:
    """name -> annotation, default and comment of each key that a node may have."""
    if not isinstance(node, Mapping):
        return {}
    if "_target_" in node:
        return _function_keys(resolve(node["_target_"], "--help"), node)
    if (record := record_of(annotation)) is not None:
        return _function_keys(record, {})
    inner = typing.get_args(mapping_of(annotation))[1:]
    return dict.fromkeys(node, (*(inner or (typing.Any,)), inspect.Parameter.empty, ""))


def _function_keys(function: Callable, node: Mapping) -> dict[str, tuple[object, object, str]]:
    """The arguments that a node gives to its function, or may give."""
    comments = read_meanings(function)
    made = (
        {} if not is_dataclass(function) else {x.name: x.default_factory for x in fields(function)}
    )
    made = {name: make() for name, make in made.items() if make is not MISSING}
    return {
        name: (p.annotation, made.get(name, p.default), comments.get(name, ""))
        for name, p in signature(function).parameters.items()
        if p.kind in BY_NAME and (name in node or not ("_partial_" in node and comes_later(p)))
    }


def _docstring(node: object) -> list[str]:
    """The docstring of the function of a node, if it has any."""
    target = target_of(node)
    if target is None:
        return []
    said = inspect.getdoc(resolve(target, "--help")) or ""
    said = ELSEWHERE.split(said)[0].strip()
    return [f"{target}:\n" + _indent(said)] if said else []


def _indent(text: str) -> str:
    return "\n".join(f"  {row}".rstrip() for row in text.splitlines())


def _names(tree: Mapping, above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if name.startswith("_") or f"{above}{name}" in FILLED_IN:
            continue
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")
