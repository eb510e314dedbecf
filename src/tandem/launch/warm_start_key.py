"""The cache key of a warm start: exactly the inputs that determine its weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from tandem.config.plain import iterate_leaves, to_plain
from tandem.config.plugins import list_sources
from tandem.contracts.parts import expand_home
from tandem.record.foreign import UNREADABLE, read_object
from tandem.settings.settings import key_of

FILE = "made_of.json"  # beside the weights
ABSENT = "unset"
NAMED = 3  # differences named in a line
TANDEM = Path(__file__).parents[1]
# Code that every run uses, in addition to the code named by its configuration.
LOOP = (
    "tandem.training.module",
    *(f"tandem.launch.{name}" for name in ("admission", "assembly", "pairs")),
)
# Packages that affect what is run, measured and written, but no weights.
WEIGHTLESS = [
    [room] for room in ("compare", "config", "evaluation", "launch", "legality", "record", "sweep")
]
COMMAND = re.compile(r"\.command\.\d+$")  # a word of a program's command line
IMPORT = re.compile(r"^\s*from (tandem[\w.]*) import (\([^)]*\)|.+)", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOf:
    """The inputs that determine weights, by readable names."""

    values: Mapping[str, object]  # of keys, and versions of libraries
    files: Mapping[str, str]  # -> digest of the bytes

    @property
    def name(self) -> str:
        return _digest(self.text.encode())[:16]

    @property
    def model(self) -> dict[str, object]:
        """The functions that build the model, by key."""
        keys = [key for key in self.values if key.startswith("model.") and key.endswith("_target_")]
        return {key: self.values[key] for key in keys}

    @property
    def text(self) -> str:
        return json.dumps({"values": self.values, "files": self.files}, sort_keys=True)

    def unlike(self, other: MadeOf) -> list[str]:
        """The differences from another one in words.

        Edited code and data come first, then values, with keys of the whole run before those of
        its parts, then files that only one of them uses, which follow from the values.
        """
        files = list(_differing(self.files, other.files))
        both = self.files.keys() & other.files.keys()
        names = sorted(_differing(self.values, other.values), key=lambda name: name.count("."))
        return [
            *(f"{name} has changed" for name in files if name in both),
            *(
                f"{name} is {_show(self.values, name)} and was {_show(other.values, name)}"
                for name in names
            ),
            *(
                f"{name} is {'used now' if name in self.files else 'no longer used'}"
                for name in files
                if name not in both
            ),
        ]


def collect_inputs(cfg: DictConfig | Mapping[str, Any]) -> MadeOf:
    """The inputs of a configuration: its values, and the code and files that they name.

    A plugin counts with its imports if it defines a part of the configuration; of Tandem, only the
    code that the run uses counts, so edits elsewhere keep the cache valid.
    """
    leaves = iterate_leaves(to_plain(cfg))
    values = {key: value for key, value in leaves if key_of(key).weights}
    texts = {key: value for key, value in values.items() if isinstance(value, str) and value}
    # A lone ~ is a text. Unlike those of Path, these functions take any text, such as ~unknown/x.
    named = {key: os.path.expanduser(x) if "/" in x else x for key, x in texts.items()}
    targets = {value for key, value in texts.items() if key.endswith("_target_")}
    places = {
        **{f"tandem/{file.relative_to(TANDEM)}": file for file in tandems_own(targets)},
        **{place.name: place for place in list_sources(targets)},
        **{key: Path(place) for key, place in named.items() if has_content(key, place)},
    }
    libraries = {"torch": torch.__version__, "transformers": metadata.version("transformers")}
    return MadeOf(
        values=values | libraries,
        files={
            f"{name}/{file.relative_to(place)}" if place.is_dir() else name: _digest(file)
            for name, place in places.items()
            for file in files(place)
        },
    )


def has_content(key: str, place: str) -> bool:
    """Whether a text names a file or a folder that is part of the inputs.

    The folders of a command, such as / of a sandbox, and those that hold the working directory or
    are or hold the home are not: nobody means all that is in them, and reading it may never end.
    """
    if not os.path.isdir(place):
        return os.path.exists(place)
    folder = Path(place).resolve()
    within = (Path.cwd().parent, expand_home("~"))
    return not COMMAND.search(key) and not any(one.is_relative_to(folder) for one in within)


def tandems_own(targets: Iterable[str]) -> list[Path]:
    """The files of Tandem that define these functions and the loop, with their imports."""
    found: set[Path] = set()
    waiting = [*LOOP, *(target.rpartition(".")[0] for target in targets)]
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None or file in found:
            continue
        found.add(file)
        waiting += [one for one in _imports(file) if one.split(".")[1:2] not in WEIGHTLESS]
    return sorted(found)


def _imports(file: Path) -> Iterator[str]:
    """Names of imports of Tandem that are or may be modules."""
    for module, names in IMPORT.findall(file.read_text(encoding="utf-8")):
        yield from (module, *(f"{module}.{name}" for name in re.findall(r"\w+", names)))


def _file_of(module: str) -> Path | None:
    """The file of a module; None if it is not one of Tandem."""
    top, *parts = module.split(".")
    place = TANDEM.joinpath(*parts)
    tried = (place / "__init__.py", place.with_suffix(".py")) if top == "tandem" else ()
    return next((file for file in tried if file.is_file()), None)


def reason(wanted: MadeOf, folder: Path) -> str:
    """Why none of the warm starts in a folder is the requested one, compared with those of the
    same kind of model."""
    known = [(name, other) for name, other in _read_all(folder) if other.model == wanted.model]
    if not known:
        return "the first one of this model here"
    unlike = {name: wanted.unlike(other) for name, other in known}
    nearest = min(unlike, key=lambda name: len(unlike[name]))
    first, more = unlike[nearest][:NAMED], len(unlike[nearest]) - NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f"{nearest} differs: {', '.join(first)}{rest}"


def files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [p for p in sorted(place.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[str]:
    names = sorted({*one, *other})
    return (name for name in names if one.get(name, ABSENT) != other.get(name, ABSENT))


def _show(values: Mapping[str, object], name: str) -> str:
    return json.dumps(values[name]) if name in values else ABSENT


def _read_all(folder: Path) -> Iterator[tuple[str, MadeOf]]:
    """The warm starts in a folder by name. Those that are being trained, whose folders may vanish,
    and those of which this file is damaged are left out."""
    for path in sorted(folder.glob(f"*/{FILE}")):
        if "." not in path.parent.name:
            with suppress(*UNREADABLE):
                found = read_object(path, "values", "files")
                yield path.parent.name, MadeOf(values=found["values"], files=found["files"])


def _digest(content: bytes | Path) -> str:
    data = content.read_bytes() if isinstance(content, Path) else content
    return hashlib.sha256(data).hexdigest()
