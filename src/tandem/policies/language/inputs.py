"""Inputs of a network beside its token ids: those of one that reads texts, and the base of others.

A subclass says what a network is given that sees more than tokens. Passes over rows and the local
engine ask it, and know no kind of network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.language.records import TokenSample
from tandem.policies.language.rows import Layout, packed_in_one, padded

if TYPE_CHECKING:
    from tandem.types import Picture


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
