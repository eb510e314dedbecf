"""Logs of one JSON object per line, keyed by `iteration`, that can be cut back after a kill."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tandem.record import durable


class Damaged(ValueError):
    """A complete line that cannot be read. No kill leaves one, so a person has to decide."""

    def __init__(self, path: Path, number: int, reason: str) -> None:
        super().__init__(
            f"{path}: line {number} is damaged ({reason}); restore a complete copy of the file, or "
            "start another run"
        )


def encode(rows: Iterable[Mapping]) -> bytes:
    """One line each. Floats round-trip; NaN and infinities are null, for JSON has neither."""
    return b"".join(json.dumps(to_json(row), allow_nan=False).encode() + b"\n" for row in rows)


def to_json(value: object) -> object:
    """The value as JSON has it: NaN and infinities are None."""
    match value:
        case Mapping():
            return {key: to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def append(path: Path, row: Mapping) -> None:
    """Append a whole line, or nothing if the disk has no room. A kill leaves a torn last line at
    most.

    Raises OSError if there is no room.
    """
    left = encode([row])
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            file.truncate(end)
            raise OSError(error.errno, error.strerror, str(path)) from error


def read(path: Path) -> list[dict]:
    """All whole lines; [] if there is no file. Raises Damaged for one that is not an object."""
    return [_object(path, number, line) for number, line in enumerate(_whole_lines(path), 1)]


def read_iterations(path: Path) -> list[int]:
    """The iterations of all whole lines. Raises Damaged for a line without one."""
    rows = [row.get("iteration") for row in read(path)]
    for number, own in enumerate(rows, 1):
        if type(own) is not int:
            raise Damaged(path, number, f"its iteration is {own!r}")
    return rows


def cut(path: Path, iteration: int) -> None:
    """Drop the lines of `iteration` and later ones, and a torn last line. All or nothing."""
    if path.exists():
        lines = zip(_whole_lines(path), read_iterations(path), strict=True)
        durable.replace(path, b"".join(line for line, own in lines if own < iteration))


def _object(path: Path, number: int, line: bytes) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, number, str(error)) from None
    if not isinstance(row, dict):
        raise Damaged(path, number, "it is not a JSON object")
    return row


def _whole_lines(path: Path) -> list[bytes]:
    raw = path.read_bytes() if path.exists() else b""
    return [line + b"\n" for line in raw.split(b"\n")[:-1]]
