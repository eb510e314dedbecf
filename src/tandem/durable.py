"""Files that are whole or absent, at whatever moment the process or the machine dies."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_new(path: Path, content: bytes) -> None:
    """A file that did not exist. Its bytes are on the disk on return."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """`path` holds the old bytes or the new ones, never a mixture; the new ones on return."""
    # In the same folder: a rename between file systems is a copy, and a copy can be torn.
    temporary = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        write_new(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """What was written to this file, or renamed in this folder, survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
