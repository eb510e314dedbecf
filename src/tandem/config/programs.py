"""Programs and engines that a configuration starts, and the variables passed to programs.

A program is identified by its command and working directory: `python agent.py` is another program
elsewhere.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.contracts.bounds import values_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A command of a program, or a variable passed to it."""

    key: str  # of the configuration
    word: str  # as on a command line
    kept: str  # what trusted.json records
    told: str  # what the run would do with it
    is_command: bool = False  # else a variable


def list_programs(node: object, where: str = "") -> Iterator[Given]:
    """The words of each program that parts of a configuration start."""
    entries = entries_of(node)
    if is_program(entries):
        yield from _words_of(entries, where)
    for key, item in entries.items():
        yield from list_programs(item, f"{where}{key}.")


def entries_of(node: object) -> Mapping[Any, object]:
    """What a part of a configuration holds by key, or by place in a list; a value holds nothing."""
    match node:
        case Mapping():
            return node
        case list():
            return dict(enumerate(node))
    return {}


def is_program(node: Mapping[str, object]) -> bool:
    """Whether this part starts a program."""
    return isinstance(node.get("command"), list)


def _words_of(node: Mapping[str, object], where: str) -> Iterator[Given]:
    command = spell(node["command"])
    here = f"{command} in {Path.cwd()}"
    told = f"would start a program, {command}, which no run of yours has started here"
    yield Given(key=f"{where}command", word=command, kept=here, told=told, is_command=True)
    for key, name in variables_of(node):
        told = f"would give {name} to a program, {command}, which no run of yours did here"
        yield Given(key=f"{where}{key}", word=name, kept=f"{name} to {here}", told=told)


def variables_of(node: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(key, variable) of the environment variables that a part reads and that are set."""
    for key, names in node.items():
        if not str(key).endswith("_env"):
            continue
        for name in values_of(names):
            if name and os.environ.get(str(name)):
                yield str(key), str(name)


def spell(command: Sequence[object]) -> str:
    """A command quoted for a shell."""
    return shlex.join(map(str, command))


def list_engines(config: Mapping[str, object]) -> Iterator[str]:
    """The engine that a run starts, with the model that it serves."""
    engine = entries_of(entries_of(config.get("rollout")).get("engine"))
    if engine.get("starts") not in (None, False):
        served = config.get("continue_from") or entries_of(config.get("model")).get("path")
        yield f"{engine.get('_target_')} of {served}"
