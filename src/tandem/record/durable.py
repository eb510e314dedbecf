"""Files that are whole or absent, at whatever moment the process or the machine dies."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Its bytes are on the disk when this returns, its name once the folder is synced."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # never through a link that somebody left there
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """`path` holds the old bytes or the new ones, never a mixture; the new ones on return."""
    # In the same folder: a rename between file systems is a copy, and a copy can be torn.
    # One name for all attempts: what a kill leaves behind is overwritten by the next one.
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        write(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make what was written to this file, or renamed in this folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
