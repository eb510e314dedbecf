"""The lines of a log, in which only the requested numbers are parsed.

A line is a flat JSON object of numbers, `iteration` first, as the record writes it. Searching it
for one name takes a twentieth of the time of parsing sixty numbers.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.record.foreign import LOG_BYTES, parse_object, read_bytes

FIRST = b'{"iteration": '
# A value that is not a finite number in Python's format. Possessive, as no shorter run of digits
# would match either: this search is nearly half of the time to read a log.
ODD = re.compile(rb'": (?!-?\d{1,25}+(?:\.\d{1,25}+)?+(?:e(?:-\d{2,3}|\+[1-3]\d))?+[,}]|null)')
MOST_ITERATIONS = 2**53  # beyond it float64 skips integers
LARGEST = 1e60  # of a number: its fourth power, which an interval takes, is still finite
NEAR = 200  # bytes by which a name moves between lines, as digits come and go


class Log:
    """One log of a run, without a last line torn by a kill.

    Raises ValueError for a line that is not an object of numbers with an iteration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        text = whole_text(path)
        starts, ends = find_lines(text)
        if not is_plain(text, starts, ends):
            lines = zip(starts.tolist(), ends.tolist(), strict=True)
            text = b"".join(self._as_ours(text[start:end]) for start, end in lines)
            starts, ends = find_lines(text)
        self._text = text
        written = self._parse(starts, ends, FIRST)
        if not ((written >= 0) & (written < MOST_ITERATIONS) & (written % 1 == 0)).all():
            raise ValueError(f"{self.path.name} has an iteration that is not a count")
        written = written.astype(np.int64)
        # The last line of a repeated iteration counts, which is the first one in reverse.
        self.iterations, places = np.unique(written[::-1], return_index=True)
        self._starts, self._ends = starts[::-1][places], ends[::-1][places]
        self._where: dict[str, NDArray] = {}
        self._numbers: dict[tuple[str, bytes], NDArray] = {}  # a page asks for some repeatedly

    def names(self) -> set[str]:
        """Names of metrics in the first two lines and the last one, which include an evaluation."""
        pairs = [*zip(self._starts.tolist(), self._ends.tolist(), strict=True)]
        lines = [self._text[a:b] for a, b in {*pairs[:2], *pairs[-1:]}]
        return {
            name for line in lines for name in parse_object(line, f"a line of {self.path.name}")
        }

    def where(self, name: str) -> NDArray:
        """[P] int64: the iterations that have a number of this name, which null is not."""
        if name not in self._where:
            text, key = self._text, key_of(name)
            lines = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
            ends = [text.find(key, *line) + len(key) for line in lines]
            has = [end >= len(key) and not text.startswith(b"null", end) for end in ends]
            self._where[name] = self.iterations[np.array(has, dtype=bool)]
        return self._where[name]

    def find_last(self, name: str) -> int | None:
        """The last iteration that has this name, with a number or null; None: there is none."""
        key = key_of(name)
        lines = zip(self._starts[::-1].tolist(), self._ends[::-1].tolist(), strict=True)
        places = zip(self.iterations[::-1].tolist(), lines, strict=True)
        return next((at for at, line in places if self._text.find(key, *line) >= 0), None)

    def numbers(self, name: str, iterations: NDArray) -> NDArray:
        """[P] float64: the numbers of this name at these iterations; NaN if there is none."""
        asked = name, iterations.tobytes()
        if asked not in self._numbers:
            known = np.isin(iterations, self.iterations)
            places = np.searchsorted(self.iterations, iterations[known])
            found = np.full(len(iterations), np.nan)
            found[known] = self._parse(self._starts[places], self._ends[places], key_of(name))
            self._numbers[asked] = found
        return self._numbers[asked]

    def _parse(self, starts: NDArray, ends: NDArray, key: bytes) -> NDArray:
        """The numbers after the key in the lines with these bounds, [lines]; NaN for null, and for
        a line without the key."""
        text, found, near = self._text, [], 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            at = text.find(key, start + near, end)
            if at < 0:
                at = text.find(key, start, min(start + near + len(key), end))
            if at < 0:
                found.append(b"nan")
                continue
            near = max(at - start - NEAR, 0)
            at += len(key)
            comma = text.find(b",", at, end)
            found.append(text[at : comma if comma > 0 else end - 1])
        try:
            texts = np.array(found, dtype="S")
            return np.where(texts == b"null", b"nan", texts).astype(np.float64)
        except ValueError:
            raise ValueError(f"{self.path.name} has {key.decode()}that is not a number") from None

    def _as_ours(self, line: bytes) -> bytes:
        """The line in the record's form, whatever program wrote it: non-finite values are null."""
        try:
            found = json.loads(line)
            whole = {"iteration": found["iteration"], **found}
            known = {name: _finite(x) for name, x in whole.items()}
            return json.dumps(known).encode() + b"\n"
        except OverflowError:
            raise ValueError(f"{self.path.name} has a number above {LARGEST:g}") from None
        except (ValueError, TypeError, LookupError, RecursionError):
            # A link in a foreign run may point to any file here, and reports are passed on.
            linked = self.path.is_symlink()
            shown = "" if linked else f": {line[:60].decode(errors='replace').strip()!r:.80}"
            raise ValueError(
                f"{self.path.name} has a line that is not a JSON object of numbers with an "
                f"iteration{shown}"
            ) from None


def _finite(value: object) -> float | None:
    """Raises TypeError for a value that is not a number, OverflowError for one too large."""
    if value is not None and type(value) not in (int, float):
        raise TypeError(f"{value!r} is not a number")
    if value is None or not math.isfinite(value):
        return None
    if abs(value) > LARGEST:
        raise OverflowError
    return value


def find_lines(text: bytes) -> tuple[NDArray, NDArray]:
    """[lines] int64: the start of each line, and the place of its line feed."""
    ends, at = [], text.find(b"\n")
    while at >= 0:
        ends.append(at)
        at = text.find(b"\n", at + 1)
    found = np.array([-1, *ends], dtype=np.int64)
    return found[:-1] + 1, found[1:]


def is_plain(text: bytes, starts: NDArray, ends: NDArray) -> bool:
    """Whether all lines have the record's format, with finite numbers and null only."""
    # The first closing brace of a line is its last byte: no value is an object.
    whole = all(
        text.startswith(FIRST, start) and text.find(b"}", start, end) == end - 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )
    return whole and b"[" not in text and b"\r" not in text and ODD.search(text) is None


def key_of(name: str) -> bytes:
    """The key as it is written before its number."""
    return json.dumps(name).encode() + b": "


def whole_text(path: Path) -> bytes:
    """The bytes of a file without a torn last line; empty if there is no file."""
    raw = read_bytes(path, LOG_BYTES) if path.exists() else b""
    return raw[: raw.rfind(b"\n") + 1]


def lines_from_the_end(path: Path) -> Iterator[bytes]:
    """The whole lines of a nonempty file, last one first: a long run has megabytes of others."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = text.rfind(b"\n") + 1
        while end > 0:
            start = text.rfind(b"\n", 0, end - 1) + 1
            yield text[start:end]
            end = start
