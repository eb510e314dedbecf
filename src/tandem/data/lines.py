"""Lines of a file, and what a line of plain text stands for."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tandem.data.checks import LONGEST_ROW
from tandem.data.decoding import open_regular


def as_row(line: bytes) -> dict:
    """A line of plain text as the row that `jsonl` would have read for it.

    Raises ValueError for a line that is too long or no unicode.
    """
    if len(line.rstrip(b"\r\n")) > LONGEST_ROW:
        raise ValueError(f"longer than {LONGEST_ROW} bytes")
    try:
        return {"prompt": line.decode().strip()}
    except UnicodeError:
        raise ValueError("not valid unicode") from None


def number_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. Raises OSError for what is no regular file."""
    with open_regular(path) as file:
        yield from nonblank_lines(file)


def nonblank_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank."""
    return ((number, line) for number, line in read_lines(file) if line.strip())


def read_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """All lines, numbered; of an overlong one the start."""
    for number, line in enumerate(iter(lambda: read_bounded(file), b""), start=1):
        # Some editors mark the start of a UTF-8 file so, also of each of several that were joined.
        yield number, line.removeprefix(BOM_UTF8)


def read_bounded(file: BinaryIO) -> bytes:
    """The next line; of an overlong one the start, so that no line fills the memory."""
    line = rest = file.readline(LONGEST_ROW + 2)
    while len(rest) == LONGEST_ROW + 2 and not rest.endswith(b"\n"):
        rest = file.readline(LONGEST_ROW + 2)
    return line
