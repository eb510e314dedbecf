"""Errors about choices inside options that were not chosen, such as random steps of an ODE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from tandem.registry.declared import options
from tandem.settings.renamed import was_renamed


def explain_absent_part(error: Exception, given: Sequence[Override], conf: Path) -> str | None:
    """The message for a Hydra error about such a choice; None: the error is about something else.

    given: the choices of the command line, which need not include the one that failed.
    """
    found = re.search(r"Could not override '([^'@]+)[^']*'", str(error))
    if found is None:
        return None
    if (places := _places(str(error))) is not None:
        return places
    if (moved := was_renamed(found[1])) is not None:
        return moved
    group, place = found[1], re.match(r"In '([^']+)/([^'/]+)'", str(error))
    whole, _, part = group.partition("/")
    if not part:
        return (
            f"{group} is a group of files, not a part of a run; see `python -m tandem train --help`"
        )
    if place is None:
        parent, _, last = group.rpartition("/")
        having = {name for (of, name), x in options().items() if of == parent and last in x.node}
        having |= {path.stem for path in _having(last, conf / parent)}
        if not having:
            return f"{group} belongs to other options of {whole} than the chosen one"
        makers = f"{parent}={any_of(sorted(having))}"
        return f"{group} belongs to {makers}, not to the chosen option"
    chooser, chosen = f"{place[1]}={place[2]}", {c.key_or_group: c.value() for c in given}
    if (option := chosen.get(whole, "auto")) != "auto":
        better = any_of([path.stem for path in _having(part, conf / whole)])
        return f"{chooser} sets {group}, which {whole}={option} does not have; set {whole}={better}"
    if "rollout" in chosen:
        way = f"rollout={chosen['rollout']}"
        return f"{way}: {chooser} sets its own rollout for the steps of {group}; leave it out"
    model = f"model={chosen['model']}" if "model" in chosen else "the model"
    return (
        f"{chooser} sets {group}, which is for steps of pictures, but {model} makes tokens; set "
        "another algorithm, or a model of pictures, such as model=tiny_flow"
    )


def _places(said: str) -> str | None:
    """The message about a group chosen at an unknown place: the places that Hydra lists."""
    listed = re.search(r"Did you mean to override (?:one of )?([^?]+)\?", said)
    chosen = re.search(r"use \+(\S+)", said)
    if listed is None or chosen is None:
        return None
    option = chosen[1].partition("=")[2]
    ways = [f"{spelling.strip()}={option}" for spelling in listed[1].split(",")]
    return f"{chosen[1]}: {'ambiguous; ' if len(ways) > 1 else ''}write {any_of(ways)}"


def _having(part: str, folder: Path) -> list[Path]:
    """The options of a group that choose this part."""
    return [p for p in sorted(folder.glob("[!_]*.yaml")) if _chooses(part, p)]


def _chooses(part: str, option: Path) -> bool:
    for entry in OmegaConf.load(option).get("defaults", ()):
        match entry:
            case Mapping() if part in {str(name).split()[-1] for name in entry}:
                return True
            case str() if (parent := option.with_name(f"{entry}.yaml")).is_file():
                if _chooses(part, parent):
                    return True
    return False


def any_of(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def list_functions_having(key: str, group: str, conf: Path) -> list[str]:
    """The options of a group whose functions take this key."""
    own = {name for (of, name), option in options().items() if of == group and key in option.node}
    return sorted(own.union(list_having(key, conf / group)))


def list_having(part: str, folder: Path) -> list[str]:
    """The options of a group whose files give this part or key a value."""
    return [option for option, node in _nodes_in(folder) if node.get(part) is not None]


def list_bringing(key: str, group: str, conf: Path) -> list[str]:
    """The options of a group that have this key, dotted below the group, whatever its value."""
    nodes = {name: option.node for (of, name), option in options().items() if of == group}
    nodes.update(_nodes_in(conf / group))
    return sorted(name for name, node in nodes.items() if _has(node, key.split(".")))


def _nodes_in(folder: Path) -> Iterator[tuple[str, dict]]:
    """The options of a group that are files, with their content."""
    for path in sorted(folder.glob("[!_]*.yaml")):
        yield path.stem, OmegaConf.to_container(OmegaConf.load(path))


def _has(node: object, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True
