"""Help page of a group or key: its options, and the type, value, bound and meaning of keys."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from tandem.config.binding import BY_NAME, comes_later
from tandem.config.help import Described, groups_of
from tandem.config.names import ConfigError, unknown
from tandem.config.plain import FILLED_IN
from tandem.config.signatures import describe, limits, options, signature
from tandem.config.targets import resolve
from tandem.settings.settings import Settings

LONGEST = 48  # characters of a value that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The documentation of one key of a composed configuration."""

    name: str  # dotted
    value: object
    annotation: object
    said: str  # the comment beside it

    @property
    def typed(self) -> str:
        return f"{self.name}={_shown(self.value)}"

    @property
    def meaning(self) -> str:
        """The type, the bound and the comment of the key."""
        several = isinstance(self.value, Mapping)
        untyped = f"its keys: --help {self.name}" if several else "anything"
        kind = describe(self.annotation) or untyped
        bound = "".join(f", must {limit}" for limit in limits(self.annotation))
        return f"{kind}{bound}{'; ' if self.said else ''}{self.said}"


def topic(
    name: str, cfg: DictConfig, chosen: Mapping[str, str | None], conf: Path, plugins: Described
) -> str:
    """The page of a group or key. Raises ConfigError for a name that is neither."""
    dotted = name.strip("/.").replace("/", ".")
    groups = {"experiment": {}, "recipe": {}} | groups_of(conf, plugins)
    known = {group.replace("/", "."): group for group in groups}
    tree = OmegaConf.to_container(cfg, resolve=True)
    keys = list(_below(dotted, tree, chosen, conf))
    if dotted not in known and not keys:
        names = dict.fromkeys([*known, *_names(tree)])
        raise ConfigError(unknown("group or key", name, names))
    group = known.get(dotted)
    parts = [] if group is None else [_options(group, groups[group], chosen.get(group))]
    if keys:
        parts.append("Keys (value, type, bound, meaning):\n" + _aligned(keys))
    if (said := _docstring(dotted, tree)) is not None:
        parts.append(said)
    inner = [other for other in groups if group is not None and other.startswith(f"{group}/")]
    if inner:
        parts.append(
            "\n".join(["Groups inside:", *(f"  --help {other}" for other in sorted(inner))])
        )
    return "\n\n".join(parts) + "\n"


def _aligned(keys: Sequence[Key]) -> str:
    width = max(len(key.typed) for key in keys)
    return "\n".join(f"  {key.typed:<{width}}  {key.meaning}" for key in keys)


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
    """The key itself, or the keys of the node that it names."""
    comments = _comments(dotted, chosen, conf)
    node, annotation = _at(tree, dotted), _annotation(dotted, tree)
    arguments = _arguments(node, annotation)
    if not arguments and node is not ABSENT:
        yield Key(name=dotted, value=node, annotation=annotation, said=comments.get(dotted, ""))
    if node is ABSENT:  # it may be at its default
        parent, _, last = dotted.rpartition(".")
        beside = _arguments(_at(tree, parent), _annotation(parent, tree)) if parent else {}
        if last in beside:
            own, default, said = beside[last]
            yield Key(name=dotted, value=default, annotation=own, said=said)
    for name, (own, default, said) in arguments.items():
        value = node.get(name, default)
        place = f"{dotted}.{name}"
        yield Key(name=place, value=value, annotation=own, said=comments.get(place) or said)


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
        node = node.get(part, ABSENT) if isinstance(node, Mapping) else ABSENT
    return kind


def _arguments(node: object, annotation: object) -> dict[str, tuple[object, object, str]]:
    """name -> annotation, default and comment of each key that a node may have."""
    if not isinstance(node, Mapping):
        return {}
    if "_target_" in node:
        return _of_function(resolve(node["_target_"], "--help"), partial="_partial_" in node)
    for option in (annotation, *options(annotation)):
        if inspect.isclass(option) and is_dataclass(option):
            return _of_function(option, partial=False)
    return {name: (typing.Any, value, "") for name, value in node.items()}


def _of_function(function: Callable, *, partial: bool) -> dict[str, tuple[object, object, str]]:
    comments = _beside(function)
    return {
        name: (p.annotation, p.default, comments.get(name, ""))
        for name, p in signature(function).parameters.items()
        if p.kind in BY_NAME and not (partial and comes_later(p))
    }


def _beside(function: Callable) -> dict[str, str]:
    """name -> the comment behind it in the signature or record."""
    written = inspect.getsource(inspect.unwrap(function))
    return dict(re.findall(r"^\s+(\w+): .*?  # (.+)$", written, re.M))


def _comments(dotted: str, chosen: Mapping[str, str | None], conf: Path) -> dict[str, str]:
    """dotted key -> the comment behind it in the files of the configuration."""
    files = {conf / "config.yaml": ""}
    for group, option in chosen.items():
        prefix = group.replace("/", ".")
        if f"{dotted}.".startswith(f"{prefix}."):
            files |= dict.fromkeys((conf / group).glob("_*.yaml"), prefix)
            files[conf / group / f"{option}.yaml"] = prefix
    found: dict[str, str] = {}
    for path, prefix in files.items():
        if path.is_file():
            found |= _commented(path.read_text(), prefix)
    return found


def _commented(text: str, prefix: str) -> dict[str, str]:
    found, above = {}, [] if not prefix or "@package _global_" in text else prefix.split(".")
    stack: list[tuple[int, str]] = []
    for row in text.splitlines():
        key = re.match(r"( *)(\w+):([^#]*)(?:# (.+))?$", row)
        if key is None:
            continue
        depth = len(key[1])
        stack = [*(one for one in stack if one[0] < depth), (depth, key[2])]
        if key[4]:
            found[".".join([*above, *(name for _, name in stack)])] = key[4]
    return found


def _docstring(dotted: str, tree: Mapping) -> str | None:
    """The docstring of the function of a node."""
    node = _at(tree, dotted)
    if not isinstance(node, Mapping) or "_target_" not in node:
        return None
    said = inspect.getdoc(resolve(node["_target_"], "--help"))
    return None if said is None else f"{node['_target_']}:\n" + _indented(said)


def _indented(text: str) -> str:
    return "\n".join(f"  {row}".rstrip() for row in text.splitlines())


def _names(tree: Mapping, above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if name.startswith("_") or f"{above}{name}" in FILLED_IN:
            continue
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        target = str(value.get("_target_", "")).rpartition(".")[2]
        return target or "{...}"
    if value is inspect.Parameter.empty:
        return "???"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
