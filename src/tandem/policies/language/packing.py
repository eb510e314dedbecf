"""Packed layouts: rows behind one another in a row of the pass, so that few places stay empty.

Each begins at position 0 again, and without a mask and a cache that is what keeps transformers'
attention within it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.experience import shares
from tandem.policies.language.inputs import Layout, padded

EMPTY = 1 / 16  # share of places that may stay empty, beside those that are taken


def packed(tokens: Tensor, read: Tensor) -> Layout:
    """As many rows as leave few places empty: attention costs the square of their width.

    tokens: [B, S], read: [B].
    """
    return _behind_one_another(tokens, read, _shelves(read.tolist()))


def packed_in_one(tokens: Tensor, read: Tensor) -> Layout:
    """A single row, for attention that costs nothing between rows: flash's of varying lengths.

    tokens: [B, S], read: [B].
    """
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
