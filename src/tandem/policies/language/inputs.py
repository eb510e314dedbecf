"""Inputs of a network: rows of tokens laid out, padded to the longest or packed, and what else it
is given beside them.

Packed rows lie behind one another in a row of the pass. Each begins at position 0 again, and
without a mask and a cache that is what keeps transformers' attention within it.

A subclass of `Inputs` says what a network is given that sees more than tokens. Passes over rows and
the local engine ask it, and know no kind of network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.experience import shares
from tandem.policies.language.pretrained import Numerics
from tandem.policies.language.records import TokenSample

if TYPE_CHECKING:
    from transformers import Cache

    from tandem.policies.language.prefix import Prefix
    from tandem.types import Picture

EMPTY = 1 / 16  # share of places that may stay empty, beside those that are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a network reads: R rows of S places."""

    tokens: Tensor  # [R, S] int64; 0 where nothing lies
    start: Tensor  # [B] int64: where each row of the sample begins among the R x S places
    # [R, S] int64 of each token in its own row, or [4, R, S], of which that is the first; None:
    # rows are apart.
    position: Tensor | None = None
    prefix: Prefix | None = None  # what stands before the rows; None: nothing
    # [R, S] int64, 1 = token, for a model that looks right, too; None: what is right is not seen.
    mask: Tensor | None = None
    more: Mapping[str, object] = field(default_factory=dict)  # what else the network is given


LayoutFn = Callable[[Tensor, Tensor], Layout]  # (tokens [B, S], how many of each row are read [B])


def padded(tokens: Tensor, read: Tensor) -> Layout:
    """A row for each row, as wide as the longest one. tokens: [B, S], read: [B]."""
    width = max(int(read.max()), 1)
    return Layout(
        tokens=tokens[:, :width], start=torch.arange(len(read), device=read.device) * width
    )


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


class PromptIds(list[int]):
    """Token ids of a prompt, with the pictures whose tokens stand among them, in their order.

    marked: the same with one token for each picture, as a server takes it that puts in the others;
    banned: tokens that are never sampled.
    """

    def __init__(
        self,
        ids: Sequence[int],
        images: Sequence[Picture],
        *,
        marked: Sequence[int],
        banned: Sequence[int],
    ) -> None:
        super().__init__(ids)
        self.images, self.marked, self.banned = tuple(images), tuple(marked), tuple(banned)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """What the pass over P prompts of S columns is given, padded on the left."""

    position: Tensor  # [P, S] int64, or [4, P, S]
    behind: Tensor  # [P, 1] of what follows, or [4, P, 1]
    more: Mapping[str, object] = field(default_factory=dict)  # other arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Rows that a network is asked about in several layouts."""

    tokens: Tensor  # [3, S] int64
    others: Tensor  # [3, S]: the second row as it is, between other neighbours
    read: Tensor  # [3] int64
    dress: Callable[[Layout], Layout]  # with all that the network is given

    def layouts(self) -> tuple[Layout, Layout, Layout, Layout]:
        """Each row alone, behind one another, so among others, and all as one long text."""
        beside = packed_in_one(self.tokens, self.read)
        whole = replace(self.dress(beside), position=None)
        among_others = self.dress(packed_in_one(self.others, self.read))
        return self.dress(padded(self.tokens, self.read)), self.dress(beside), among_others, whole


class Inputs:
    """Of a network that reads texts alone."""

    banned: Sequence[int] = ()  # tokens that are never sampled: they have no probability
    tied: Sequence[nn.Parameter] = ()  # weights that a pass asks only where its rows need them
    shares_prompts = True  # whether a prompt may be read once for the rows that answer it

    def layers(self, model: nn.Module) -> nn.Module:
        """What makes the states that the head reads."""
        return model.get_decoder()

    def lay(self, layout: Layout, sample: TokenSample, read: Tensor) -> Layout:
        """A layout of these rows with all that the network is given. `read`: [B] int64."""
        return layout

    def first_pass(self, prompts: Sequence[list[int]], tokens: Tensor, mask: Tensor) -> FirstPass:
        """What goes with prompts that are padded on the left. tokens, mask: [P, S] int64."""
        position = (mask.cumsum(1) - 1).clamp(min=0)
        return FirstPass(position=position, behind=mask.sum(1, keepdim=True))

    def probe(self, vocabulary: int, device: torch.device) -> Probe:
        """Three rows that are not alike."""
        tokens = (torch.arange(24, device=device) % vocabulary).view(3, 8)
        others = tokens.clone()
        others[::2] = (others[::2] + 1) % vocabulary  # on both sides of the second row
        read = torch.tensor([5, 8, 7], device=device)
        return Probe(tokens=tokens, others=others, read=read, dress=lambda layout: layout)


TEXTS = Inputs()


class Trunk:
    """The layers of a causal language model, without its head."""

    def __init__(self, layers: nn.Module, numerics: Numerics) -> None:
        self.layers, self.checkpoints = layers, numerics.gradient_checkpointing
        self.run = torch.compile(layers, dynamic=True) if numerics.torch_compile else layers

    def __call__(self, layout: Layout) -> Mapping[str, Tensor]:
        if self.checkpoints:
            # Activations are recomputed in train mode only, and sampling must never be in it.
            self.layers.train(torch.is_grad_enabled())
        where = {} if layout.position is None else {"position_ids": layout.position}
        if layout.mask is not None:
            where["attention_mask"] = layout.mask
        if layout.prefix is not None:
            where |= self.remember(layout.prefix, layout.tokens)
        where |= layout.more
        out = self.run(input_ids=layout.tokens, use_cache=layout.prefix is not None, **where)
        if self.checkpoints:
            self.layers.eval()
        return out

    def remember(self, prefix: Prefix, rows: Tensor) -> dict[str, Cache | Tensor]:
        """What stands before the rows [R, S] is read once, and seen by each."""
        out = self.run(
            input_ids=prefix.tokens,
            attention_mask=prefix.mask,
            position_ids=(prefix.mask.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
        )
        out.past_key_values.reorder_cache(prefix.of_row)
        mask = torch.cat([prefix.mask[prefix.of_row], torch.ones_like(rows)], 1)
        return {"past_key_values": out.past_key_values, "attention_mask": mask}
