"""Files of a run directory that may be anybody's: read within limits, or refused in one line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from tandem.settings.renamed import present_config

# libyaml's parts know no tags either, and are ten times as fast where they were built.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MIB = 1 << 20
CONFIG_BYTES, JSON_BYTES, LOG_BYTES = 4 * MIB, 64 * MIB, 4096 * MIB
DEEPEST = 100  # mappings and lists in one another
# What a file that is not ours may make a reader raise, whatever stands in it.
UNREADABLE = (
    *(OSError, yaml.YAMLError, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)


def check_file(path: Path, most: int) -> None:
    """Raise ValueError for what is there and is no plain file: to open a FIFO waits for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is no plain file")
    if found.st_size > most:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes, more than {most:,}")


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises ValueError for more than `most` of them."""
    check_file(path, most)
    return path.read_bytes()


def read_config(path: Path) -> dict[str, Any]:
    """A configuration as a record holds it, under present names: a mapping of plain values.

    Raises ValueError for one that is too deep, and for aliases, a few of which mean gigabytes.
    """
    raw = read_bytes(path, CONFIG_BYTES)
    depth = 0
    for event in yaml.parse(raw, Loader=LOADER):
        opens = isinstance(event, yaml.CollectionStartEvent)
        depth += opens - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{path.name} has an alias, which no record holds")
        if depth > DEEPEST:
            raise ValueError(f"{path.name} is more than {DEEPEST} levels deep")
    config = yaml.load(raw, Loader=LOADER)
    if not isinstance(config, dict):
        raise ValueError(f"{path.name} is no mapping")
    return present_config(config)


def reason_of(error: Exception) -> str:
    """Its kind and its first line."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
