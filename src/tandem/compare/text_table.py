"""A table as plain text, fitted to the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tandem.compare.table import Table
from tandem.record.foreign import plain

GAP = 2  # columns between two cells
NARROWEST = 16  # characters that a column of prose keeps


def fill(text: str, width: int) -> str:
    return textwrap.fill(plain(text), width, break_on_hyphens=False)


def fit_table(table: Table, width: int) -> str:
    """Plain text: long cells are wrapped, and columns that do not fit follow below."""
    cells = [list(map(plain, row)) for row in (table.columns, *table.rows)]
    columns = list(zip(*cells, strict=True))
    blocks = [lay_out([columns[0], *some], width) for some in split_columns(columns, width)]
    notes = [fill(note, width) for note in table.notes]
    return "\n\n".join([fill(table.title, width), *blocks, *notes])


Column = Sequence[str]


def split_columns(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """The columns after the first, in as few blocks as fit beside it."""
    blocks: list[list[Column]] = [[]]
    for column in columns[1:]:
        block = [*blocks[-1], column]
        if blocks[-1] and sum(narrow(one) + GAP for one in [columns[0], *block]) - GAP > width:
            blocks.append([column])
        else:
            blocks[-1] = block
    return blocks


def narrow(column: Column) -> int:
    """The smallest width of a column: numbers are not broken, prose is broken between words."""
    longest = max(map(len, column))
    if longest <= NARROWEST:
        return longest
    words = max(len(word) for cell in column for word in cell.split() or [""])
    return min(longest, max(NARROWEST, min(words, 2 * NARROWEST)))


def lay_out(columns: Sequence[Column], width: int) -> str:
    """The rows of one block; spare width goes to the columns that lack most of theirs."""
    widths = [narrow(column) for column in columns]
    wanted = [max(map(len, column)) for column in columns]
    left = width - sum(widths) - GAP * (len(columns) - 1)
    while left > 0 and (short := [i for i, w in enumerate(widths) if w < wanted[i]]):
        widths[min(short, key=lambda i: widths[i] / wanted[i])] += 1
        left -= 1
    widths = [min(one, width) for one in widths]
    lines = zip(*columns, strict=True)
    head, *rows = ([wrap(c, w) for c, w in zip(line, widths, strict=True)] for line in lines)
    rule = (" " * GAP).join("-" * one for one in widths)
    below = [line for row in rows for line in write_lines(row, widths)]
    return "\n".join([*write_lines(head, widths), rule, *below])


def wrap(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def write_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """The lines of one row with wrapped cells."""
    for i in range(max(map(len, row))):
        parts = (cell[i] if i < len(cell) else "" for cell in row)
        padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
        yield (" " * GAP).join(padded).rstrip()
