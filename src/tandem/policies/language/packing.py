"""Layouts of rows of tokens for a network: padded to the longest, or packed behind one another.

Packed rows share a row of the pass. Each begins at position 0 again, and without a mask and without
a cache that is what keeps transformers' attention within it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem.budget import shares

EMPTY = 1 / 16  # share of places that may stay empty, beside those that are taken
# Parts of what a neighbour would change in a row, in wide and in narrow dtypes.
ALONE = 1e-3, 0.05  # that a packed row may differ by from a row alone: passes of other shapes round
APART = 1e-5, 0.0  # that other neighbours may change: in passes of one shape, experts alone round


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a network reads: R rows of S places."""

    tokens: Tensor  # [R, S] int64; 0 where nothing lies
    start: Tensor  # [B] int64: where each row of the sample begins among the R x S places
    position: Tensor | None = (
        None  # [R, S] int64 of each token in its own row; None: rows are apart
    )


LayoutFn = Callable[[Tensor, Tensor], Layout]  # (tokens [B, S], how many of each row are read [B])


def padded(tokens: Tensor, read: Tensor) -> Layout:
    """A row for each row, as wide as the longest one."""
    width = max(int(read.max()), 1)
    return Layout(
        tokens=tokens[:, :width], start=torch.arange(len(read), device=read.device) * width
    )


def packed(tokens: Tensor, read: Tensor) -> Layout:
    """As many rows as leave few places empty: attention costs the square of their width."""
    return _behind_one_another(tokens, read, _shelves(read.tolist()))


def packed_in_one(tokens: Tensor, read: Tensor) -> Layout:
    """A single row, for attention that costs nothing between rows: flash's of varying lengths."""
    return _behind_one_another(tokens, read, [list(range(len(read)))])


def _shelves(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of the sample on each row of the pass, none of them much fuller than the others."""
    rows = [row for row, length in enumerate(lengths) if length > 0]
    total, longest = sum(lengths), max(lengths)
    most = int((1 + EMPTY) * total / max(longest, 1))
    for count in range(min(most, len(rows)), 1, -1):
        found = shares([lengths[row] for row in rows], count)
        width = max(sum(lengths[rows[i]] for i in shelf) for shelf in found)
        if len(found) * width <= (1 + EMPTY) * total:
            return [[rows[i] for i in shelf] for shelf in found]
    return [rows]


def _behind_one_another(tokens: Tensor, read: Tensor, shelves: Sequence[Sequence[int]]) -> Layout:
    if not read.any() or len(shelves) == len(read):
        return padded(tokens, read)
    lengths = read.tolist()
    width = max(sum(lengths[row] for row in shelf) for shelf in shelves)
    start = [0] * len(lengths)
    for place, shelf in enumerate(shelves):
        begin = place * width
        for row in shelf:
            start[row] = begin
            begin += lengths[row]
    return _laid(tokens, read, torch.tensor(start, device=read.device), (len(shelves), width))


def _laid(tokens: Tensor, read: Tensor, start: Tensor, shape: tuple[int, int]) -> Layout:
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    row, column = (columns < read[:, None]).nonzero(as_tuple=True)
    place = start[row] + column
    # Empty places are rows of one token each: position 0, which every model has.
    blank = tokens.new_zeros(shape[0] * shape[1])
    return Layout(
        tokens=blank.index_put((place,), tokens[row, column]).view(shape),
        start=start,
        position=blank.index_put((place,), column).view(shape),
    )


@torch.no_grad()
def keeps_rows_apart(states: Callable[[Layout], Tensor], vocabulary: int, like: Tensor) -> bool:
    """Whether a network says the same of a row beside others as of the row alone, to rounding, and
    beside any others, to the last bit of a narrow dtype: a small leak would pass for rounding.

    states: what it says of every place, [R, S, D]. Measured against what it says when the rows
    are one long text, so that neither its size nor its depth matters.
    """
    tokens = (torch.arange(24, device=like.device) % vocabulary).view(3, 8)
    read = torch.tensor([5, 8, 7], device=like.device)
    others = tokens.clone()
    others[::2] = (others[::2] + 1) % vocabulary  # on both sides of the second row
    alone, beside = padded(tokens, read), packed_in_one(tokens, read)
    layouts = alone, beside, packed_in_one(others, read), replace(beside, position=None)
    row, column = (torch.arange(8, device=like.device) < read[:, None]).nonzero(as_tuple=True)
    want, got, among_others, as_one = (
        states(layout).flatten(0, 1)[layout.start[row] + column].float() for layout in layouts
    )
    leak, second = (as_one - want).norm(), row == 1
    narrow = like.dtype not in (torch.float32, torch.float64)
    as_alone = (got - want).norm() <= ALONE[narrow] * leak
    return bool(as_alone and (among_others - got)[second].norm() <= APART[narrow] * leak)
