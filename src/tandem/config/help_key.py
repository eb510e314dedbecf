"""Help page of one key: its meaning, type, bound and default, who set it, and who reads it."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tandem.config.absent import list_functions_having
from tandem.config.options_in_use import Setter
from tandem.config.signatures import describe, limits
from tandem.config.swaps import select_node
from tandem.record.terminal import line
from tandem.settings.renamed import OF_THE_RUN
from tandem.settings.settings import key_of

LONGEST = 48  # characters of a value that is shown
WIDTH = 100
MOST = 8  # presets that are listed for one value
SCALED = re.compile(r"^\$\{mul:([^,]+),\s*\$\{([\w.]+)\}\}$")  # a number in units of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The documentation of one key of a composed configuration."""

    name: str  # dotted
    value: object
    annotation: object
    said: str  # the comment beside it, in YAML or in the source
    default: object = inspect.Parameter.empty  # of the function that reads it

    @property
    def assignment(self) -> str:
        return f"{self.name}={shorten(self.value)}"

    @property
    def kind(self) -> str:
        """The type and the bound."""
        several = isinstance(self.value, Mapping)
        untyped = f"its keys: --help {self.name}" if several else "anything"
        kind = describe(self.annotation) or untyped
        return kind + "".join(f", must {limit}" for limit in limits(self.annotation))

    @property
    def meaning(self) -> str:
        """The type, the bound and the comment of the key."""
        return f"{self.kind}{'; ' if self.said else ''}{self.said}"


def describe_key(
    key: Key,
    conf: Path,
    *,
    target: str | None,
    chosen: Mapping[str, str | None],
    setter: Setter | None,
) -> str:
    """The page of one key. `target`: the function that reads it; `setter`: what set its value."""
    parent, _, last = key.name.rpartition(".")
    group = parent.replace(".", "/")
    option = chosen.get(group)
    presets = list(_presets(key.name, conf))
    having = list_functions_having(last, group, conf) if "/" in group else []
    others = [one for one in having if one != option]
    reader = [f"{group}={option}"] if option else []
    rows = {
        "meaning": key.said or ("see below" if target else "-"),
        "takes": key.kind,
        "default": "" if key.default is inspect.Parameter.empty else shorten(key.default),
        "set by": "" if setter is None else f"{setter.place}: {shorten(setter.written)}",
        "read by": ", ".join([*reader, *filter(None, [target])]),
        "also in": f"{group}={', '.join(others)}" if others else "",
        "presets": "; ".join(presets),
        "on resume": "may change" if key_of(key.name).resumable else "keeps its value",
    }
    return "\n".join(
        [key.assignment, "", *(_row(name, text) for name, text in rows.items() if text)]
    )


def _row(name: str, text: str) -> str:
    indent = " " * len(line("", ""))
    return line(
        name,
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        ).lstrip(),
    )


def _presets(name: str, conf: Path) -> Iterator[str]:
    """The values that the options of the group above the key give it, each with its options."""
    place = f"algorithm.{name}" if name in OF_THE_RUN else name
    group, _, rest = place.partition(".")
    found: dict[str, list[str]] = {}
    for path in sorted((conf / group).glob("[!_]*.yaml")) if rest else ():
        node = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
        if isinstance(value := select_node(node, rest), str):
            found.setdefault(value, []).append(path.stem)
    for value, options in sorted(found.items(), key=lambda one: -len(one[1])):
        more = f" and {len(options) - MOST} more" if len(options) > MOST else ""
        yield f"{shorten(value)} in {group}={', '.join(options[:MOST])}{more}"


def shorten(value: object) -> str:
    """A value as it is shown: of a node its function or braces."""
    if isinstance(value, Mapping):
        target = str(value.get("_target_", "")).rpartition(".")[2]
        return target or ("{...}" if value else "{}")
    if value is inspect.Parameter.empty:
        return "???"
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = SCALED.sub(r"\1 x \2", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
