"""Packed layouts: several rows in one row of the pass, with little padding.

Each row starts at position 0 again; without a mask and a cache, this keeps transformers' attention
within it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.experience import shares
from tandem.policies.language.inputs import Layout, pad_rows

EMPTY = 1 / 16  # share of padding that is accepted, relative to the tokens


def pack_rows(tokens: Tensor, read: Tensor) -> Layout:
    """Several packed rows, as many as leave little padding: attention is quadratic in their width.

    tokens: [B, S], read: [B].
    """
    return _behind_one_another(tokens, read, _shelves(read.tolist()))


def pack_in_one_row(tokens: Tensor, read: Tensor) -> Layout:
    """A single row, for attention without cost between rows: variable-length flash attention.

    tokens: [B, S], read: [B].
    """
    return _behind_one_another(tokens, read, [list(range(len(read)))])


def _shelves(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of the sample in each row of the pass, balanced by length."""
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
        return pad_rows(tokens, read)
    lengths = read.tolist()
    width = max(sum(lengths[row] for row in shelf) for shelf in shelves)
    start = [0] * len(lengths)
    for place, shelf in enumerate(shelves):
        begin = place * width
        for row in shelf:
            start[row] = begin
            begin += lengths[row]
    return _lay_out(tokens, read, torch.tensor(start, device=read.device), (len(shelves), width))


def _lay_out(tokens: Tensor, read: Tensor, start: Tensor, shape: tuple[int, int]) -> Layout:
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    row, column = (columns < read[:, None]).nonzero(as_tuple=True)
    place = start[row] + column
    # Padding is rows of one token each: position 0, which every model has.
    blank = tokens.new_zeros(shape[0] * shape[1])
    return Layout(
        tokens=blank.index_put((place,), tokens[row, column]).view(shape),
        start=start,
        position=blank.index_put((place,), column).view(shape),
    )
