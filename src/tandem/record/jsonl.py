"""Logs of one JSON object per line, keyed by `iteration`, that can be cut back after a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from tandem.record import durable


def encode(rows: Iterable[Mapping]) -> bytes:
    """One line each. Floats round-trip; NaN and infinities are null, for JSON has neither."""
    return b"".join(json.dumps(_plain(row), allow_nan=False).encode() + b"\n" for row in rows)


def append(path: Path, row: Mapping) -> None:
    """One write call, so that a kill leaves the line or a torn last line."""
    with path.open("ab", buffering=0) as file:
        file.write(encode([row]))


def read(path: Path) -> list[dict]:
    """All whole lines; [] if there is no file."""
    return [json.loads(line) for line in _whole_lines(path)]


def cut(path: Path, iteration: int) -> None:
    """Drop the lines of `iteration` and later ones, and a torn last line. All or nothing."""
    if path.exists():
        kept = [line for line in _whole_lines(path) if json.loads(line)["iteration"] < iteration]
        durable.replace(path, b"".join(kept))


def _whole_lines(path: Path) -> list[bytes]:
    raw = path.read_bytes() if path.exists() else b""
    return [line for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
