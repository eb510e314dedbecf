"""Files that are whole or absent, at whatever moment the process or the machine dies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file: its bytes are on disk on return, its name once the folder is synced."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # never through a link in its place
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """`path` holds the old bytes or the new ones, never a mixture; the new ones on return."""
    replace_all(path.parent, {path.name: content})


def replace_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace several files; if there is no room for all of them, all keep the old bytes."""
    # In the same folder: a rename between file systems is a copy, and a copy can be torn.
    # One name for all attempts: what a kill leaves behind is overwritten by the next one.
    temporary = {name: folder / f"{name}.tmp" for name in contents}
    try:
        for name, content in contents.items():
            write(temporary[name], content)
        for name, path in temporary.items():
            path.replace(folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    sync(folder)


def sync(path: Path) -> None:
    """Make what was written to this file, or renamed in this folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
