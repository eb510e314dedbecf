"""Files of an untrusted run directory: read within limits, or refused in one line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tandem.settings.renamed import present_config

# libyaml's loader is as safe and ten times as fast, where it is installed.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MIB = 1 << 20
CONFIG_BYTES, JSON_BYTES, LOG_BYTES = 4 * MIB, 64 * MIB, 4096 * MIB
FILES = {".json", ".jsonl", ".yaml", ".lock"}  # suffixes of files, which no folder may have
DEEPEST = 100  # nested mappings and lists
MOST_VALUES = 50_000  # keys and values of a configuration
# The exceptions that reading an untrusted file may raise.
UNREADABLE = (
    *(OSError, yaml.YAMLError, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)


class UnreadableRun(ValueError):
    """A run directory with a file that cannot be read as one of a run."""

    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(plain(f"{folder} cannot be read as a run ({reason_of(error)})"))
        self.folder = folder


def check_file(path: Path, most: int) -> None:
    """Raise ValueError for an existing path that is no regular file, as a FIFO would block, or that
    is closed or too large."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if found.st_size > most:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes, more than {most:,}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path.name} may not be read by this user")


def check_files(folder: Path) -> None:
    """Raise ValueError for entries of a run directory that must not be opened or written: a link,
    as a resumed run would write or delete at its target; a FIFO, a folder in place of a file, and
    a file that is too large."""
    for home, folders, files in os.walk(folder, onerror=_raise):
        for place in (Path(home) / name for name in (*folders, *files)):
            _check_place(place, folder)
    for place in folder.iterdir():
        if place.is_file():
            check_file(place, LOG_BYTES)


def _check_place(place: Path, folder: Path) -> None:
    name = place.relative_to(folder)
    if place.is_symlink():
        if not _is_of_wandb(place, folder):
            raise ValueError(
                f"{name} is a link to {place.readlink()}; replace it with a copy of its target"
            )
    elif not place.is_file() and (not place.is_dir() or place.suffix in FILES):
        raise ValueError(f"{name} is not a regular file")
    elif place.suffix == ".lock" and place.stat().st_nlink > 1:  # it is written in place
        raise ValueError(f"{name} is a hard link to a file elsewhere; delete it")


def _is_of_wandb(place: Path, folder: Path) -> bool:
    """Whether W&B makes this link: to its newest start in `wandb`, or to the log of its service,
    which it writes in the user's cache and never under this name."""
    name = place.relative_to(folder)
    home = Path(os.path.realpath(folder)) / "wandb"
    inside = Path(os.path.realpath(place)).is_relative_to(home)  # accepts a link to itself
    return name.parts[0] == "wandb" and (inside or name.match("wandb/*/logs/debug-core.log"))


def _raise(error: OSError) -> None:
    """A folder that cannot be read may hold links; one that is gone holds none."""
    if not isinstance(error, FileNotFoundError):
        raise error


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises ValueError for more than `most` of them."""
    check_file(path, most)
    return path.read_bytes()


def read_config(path: Path) -> dict[str, Any]:
    """A recorded configuration under the present names of keys: a mapping of plain values.

    Raises ValueError for one that is too deep or too large, and for aliases: a few of them can
    expand to gigabytes.
    """
    raw = read_bytes(path, CONFIG_BYTES)
    try:
        check_yaml(raw, path.name)
        config = yaml.load(raw, Loader=LOADER)
    except yaml.YAMLError as error:  # lines with a space in front show where, and quote the file
        said = "; ".join(line for line in str(error).splitlines() if not line.startswith(" "))
        raise ValueError(f"{path.name} is not YAML: {said}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path.name} is not a mapping")
    return present_config(config)


def check_yaml(raw: bytes | str, name: str) -> None:
    """Raise ValueError for a text that is too deep or has too many values, and for aliases."""
    depth = values = 0
    for event in yaml.parse(raw, Loader=LOADER):
        match event:
            case yaml.ScalarEvent():
                values += 1
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
            case yaml.AliasEvent():
                raise ValueError(f"{name} has a YAML alias, which is not allowed")
        if depth > DEEPEST:
            raise ValueError(f"{name} is more than {DEEPEST} levels deep")
        if values > MOST_VALUES:
            raise ValueError(f"{name} has more than {MOST_VALUES:,} keys and values")


def parse_object(raw: bytes, where: str, *keys: str) -> dict[str, Any]:
    """A JSON object that has these keys. Raises ValueError that says what is wrong, and where."""
    try:
        found = json.loads(raw)
    except RecursionError:
        raise ValueError(f"{where} nests brackets too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    return check_object(found, where, *keys)


def check_object(found: object, where: str, *keys: str) -> dict[str, Any]:
    """The object, if it is one that has these keys. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{where} is not a JSON object")
    for key in keys:
        if key not in found:
            raise ValueError(f"{where} has no {key}")
    return found


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError if it is none, or lacks one of these keys."""
    return parse_object(read_bytes(path, JSON_BYTES), path.name, *keys)


def find_stranger(folder: Path) -> str | None:
    """The name of a configuration or manifest in a folder that no run wrote; None: it has none."""
    return next((name for name, is_own in _judge_files(folder) if not is_own), None)


def is_of_a_run(folder: Path) -> bool:
    """Whether a folder has a configuration or a manifest that a run wrote: an untrusted run may
    lack one."""
    return any(is_own for _, is_own in _judge_files(folder))


def _judge_files(folder: Path) -> Iterator[tuple[str, bool]]:
    """The configuration and the manifest in a folder, each with whether a run wrote it."""
    own = {"config.yaml": (read_config, "choices"), "manifest.json": (read_object, "starts")}
    for name, (read, key) in own.items():
        if os.path.exists(folder / name):
            try:
                yield name, key in read(folder / name)
            except UNREADABLE:
                yield name, False


def reason_of(error: Exception) -> str:
    """One line in words. What else than a ValueError or an OSError a file makes a reader raise says
    nothing to its user."""
    if isinstance(error, ValueError | OSError):
        return next(iter(str(error).splitlines()), "")
    return f"a value in it has the wrong type ({type(error).__name__})"


def plain(text: str) -> str:
    """One line without control characters, so that a name cannot control the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
