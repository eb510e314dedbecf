"""The lines of a log, of which only the numbers that are asked for are parsed.

A line is a flat JSON object of numbers, `iteration` first, as the record writes it: to search it
for one name takes a twentieth of the time that parsing sixty numbers does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FIRST = b'{"iteration": '
NEAR = 200  # bytes by which a name moves from a line to the next, as digits come and go
Column = tuple[NDArray, NDArray]  # [P] iterations, int64; [P] numbers, float64 and finite


class Log:
    """One file of a run; a line that a kill tore is left out.

    Raises ValueError for a line that is no object with an iteration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = whole_lines(path)
        ours = all(line.startswith(FIRST) and line.endswith(b"}\n") for line in lines)
        flat = sum(line.count(b"}") for line in lines) == len(lines)
        self.lines: Sequence[bytes] = lines if ours and flat else [*map(self._as_ours, lines)]
        self._columns: dict[str, Column] = {}

    def names(self) -> set[str]:
        """Of the numbers that the first two lines and the last one have: an evaluation is there."""
        ends = {*self.lines[:2], *self.lines[-1:]}
        return {name for line in ends for name in json.loads(line)}

    def last(self) -> int:
        """The iteration of the last line; 0 without one."""
        return int(self._numbers(self.lines[-1:], FIRST)[0]) if self.lines else 0

    def column(self, name: str) -> Column:
        """The number of this name wherever it is there, by iteration; null is none.

        Of an iteration that is there twice the last line counts.
        """
        if name not in self._columns:
            key = json.dumps(name).encode() + b": "
            lines = [line for line in self.lines if key in line]
            numbers = self._numbers(lines, key)
            known = np.isfinite(numbers)
            iterations = self._numbers(lines, FIRST).astype(np.int64)[known]
            # The first in reverse is the last one.
            at, places = np.unique(iterations[::-1], return_index=True)
            self._columns[name] = at, numbers[known][::-1][places]
        return self._columns[name]

    def _numbers(self, lines: Sequence[bytes], key: bytes) -> NDArray:
        """[lines], of those that have the key; NaN for null."""
        texts, near = [], 0
        for line in lines:
            start = line.find(key, near, near + 2 * NEAR)
            start = (start if start >= 0 else line.index(key)) + len(key)
            near = max(start - NEAR, 0)
            texts.append(line[start : line.find(b",", start)].rstrip(b"}"))
        try:
            known = [b"nan" if text == b"null" else text for text in texts]
            return np.array(known, dtype="S").astype(np.float64)
        except ValueError:
            raise ValueError(f"{self.path} has {key.decode()}that is no number") from None

    def _as_ours(self, line: bytes) -> bytes:
        """As the record writes it, whoever wrote it."""
        try:
            found = json.loads(line)
            return json.dumps({"iteration": found["iteration"], **found}).encode() + b"\n"
        except (ValueError, TypeError, LookupError):
            shown = line[:60].decode(errors="replace").strip()
            raise ValueError(f"{self.path} has a line that is none: {shown!r}") from None


def whole_lines(path: Path) -> list[bytes]:
    """Without one that a kill tore; [] if there is no file."""
    raw = path.read_bytes() if path.exists() else b""
    return [line for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]
