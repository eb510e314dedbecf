"""Inputs of a network: rows of tokens in a layout, the steps that are read, and further arguments.

A subclass of `Inputs` defines the arguments of a network that reads more than tokens. Forward
passes and the local engine use it, so they depend on no kind of network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor, nn

from tandem.policies.language.pretrained import Numerics
from tandem.policies.language.records import TokenSample
from tandem.policies.sharding import Sharded
from tandem.policies.weights import Replicated
from tandem.types import Evidence, concat, take

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import Cache

    from tandem.policies.language.prefix import Prefix

Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The inputs of a pass: R rows of S columns."""

    tokens: Tensor  # [R, S] int64; 0 where empty
    start: Tensor  # [B] int64: where each row of the sample begins among the R x S places
    # [R, S] int64 of each token in its own row, or [4, R, S] with that as the first; None: one row
    # of the sample per row of the pass.
    position: Tensor | None = None
    prefix: Prefix | None = None  # prompts that rows share; None: none
    # [R, S] int64, 1 = token, for bidirectional models; None: attention is causal.
    mask: Tensor | None = None
    more: Mapping[str, object] = field(default_factory=dict)  # further arguments of the network


LayoutFn = Callable[[Tensor, Tensor], Layout]  # (tokens [B, S], tokens read of each row [B])


def pad_rows(tokens: Tensor, read: Tensor) -> Layout:
    """One row of the pass per row, padded to the longest. tokens: [B, S], read: [B]."""
    width = max(int(read.max()), 1)
    return Layout(
        tokens=tokens[:, :width], start=torch.arange(len(read), device=read.device) * width
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """Inputs of the pass over P prompts of S columns, padded on the left."""

    position: Tensor  # [P, S] int64, or [4, P, S]
    behind: Tensor  # [P, 1] of the next token, or [4, P, 1]
    more: Mapping[str, object] = field(default_factory=dict)  # further arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Rows on which a network is tested in several layouts."""

    tokens: Tensor  # [3, S] int64
    others: Tensor  # [3, S]: the same second row between different neighbours
    read: Tensor  # [3] int64
    dress: Callable[[Layout], Layout]  # adds all arguments of the network


class Inputs:
    """The inputs of a network that reads text alone."""

    banned: Sequence[int] = ()  # tokens with probability 0, which are never sampled
    tied: Sequence[nn.Parameter] = ()  # weights that a pass uses only if its rows need them
    shares_prompts = True  # whether a prompt may be read once for all its rows

    def layers(self, model: nn.Module) -> nn.Module:
        """The submodule that computes the inputs of the head."""
        return model.get_decoder()

    def lay(self, layout: Layout, sample: TokenSample, read: Tensor) -> Layout:
        """A layout of these rows with all arguments of the network. `read`: [B] int64."""
        return layout

    def first_pass(self, prompts: Sequence[list[int]], tokens: Tensor, mask: Tensor) -> FirstPass:
        """Further inputs of prompts padded on the left. tokens, mask: [P, S] int64."""
        position = (mask.cumsum(1) - 1).clamp(min=0)
        return FirstPass(position=position, behind=mask.sum(1, keepdim=True))

    def probe(self, vocabulary: int, device: torch.device) -> Probe:
        """Three different rows."""
        tokens = (torch.arange(24, device=device) % vocabulary).view(3, 8)
        others = tokens.clone()
        others[::2] = (others[::2] + 1) % vocabulary  # on both sides of the second row
        read = torch.tensor([5, 8, 7], device=device)
        return Probe(tokens=tokens, others=others, read=read, dress=lambda layout: layout)


TEXTS = Inputs()


class Trunk:
    """The layers of a causal language model, without its head."""

    def __init__(self, layers: nn.Module, numerics: Numerics) -> None:
        self.layers = layers
        self.run = torch.compile(layers, dynamic=True) if numerics.torch_compile else layers

    def __call__(self, layout: Layout) -> Mapping[str, Tensor]:
        where = {} if layout.position is None else {"position_ids": layout.position}
        if layout.mask is not None:
            where["attention_mask"] = layout.mask
        if layout.prefix is not None:
            where |= self.remember(layout.prefix, layout.tokens)
        where |= layout.more
        return self.run(input_ids=layout.tokens, use_cache=layout.prefix is not None, **where)

    def remember(self, prefix: Prefix, rows: Tensor) -> dict[str, Cache | Tensor]:
        """Read the prefixes of rows [R, S] once, and share their keys and values."""
        out = self.run(
            input_ids=prefix.tokens,
            attention_mask=prefix.mask,
            position_ids=(prefix.mask.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
        )
        out.past_key_values.reorder_cache(prefix.of_row)
        mask = torch.cat([prefix.mask[prefix.of_row], torch.ones_like(rows)], 1)
        return {"past_key_values": out.past_key_values, "attention_mask": mask}


def find_alike(sample: TokenSample, mask: Tensor) -> tuple[Tensor, Tensor] | None:
    """One of each set of identical rows, [R] int64, and each row's index among those, [B]. mask:
    [B, T].

    None: no two are identical, or finding them would synchronise an accelerator.
    """
    if mask.device.type != "cpu" or sample.images is not None or sample.context is not None:
        return None
    of_rows = sample.tokens, sample.prompt_length[:, None], sample.temperature[:, None], mask
    kinds, place = torch.cat([x.double() for x in of_rows], 1).unique(dim=0, return_inverse=True)
    if len(kinds) == len(place):
        return None
    return place.new_zeros(len(kinds)).scatter(0, place, torch.arange(len(place))), place


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndex:
    """Indices and tokens of the N steps of a mask [B, T]."""

    row: Tensor  # [N] int64
    step: Tensor  # [N] int64
    column: Tensor  # [N] int64 of the token in its row; its logits are one column before
    token: Tensor  # [N] int64
    temperature: Tensor  # [N]

    @classmethod
    def of(cls, sample: TokenSample, mask: Tensor) -> TokenIndex:
        """The index of a mask [B, T]."""
        row, step = mask.nonzero(as_tuple=True)
        column = sample.prompt_length[row] + step
        return cls(
            row=row,
            step=step,
            column=column,
            token=sample.tokens[row, column],
            temperature=sample.temperature[row],
        )

    def read(self, rows: int) -> Tensor:
        """Tokens of each row that a forward pass must read, [B]: the last one is never read."""
        blank = self.column.new_zeros(rows)
        return blank.scatter_reduce(0, self.row, self.column, "amax")

    def gather(self, states: Tensor, start: Tensor) -> Tensor:
        """The state one column before each token. [R, S, D] -> [N, D].

        start: [B], where each row begins among the R x S states.
        """
        flat = start[self.row] + self.column - 1
        return states.flatten(0, 1).index_select(0, flat)


class RowScorer(ABC, Generic[Rows]):
    """Computes values of the tokens of a sample's rows."""

    weights: Replicated

    def shard(self, networks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        """Shard the networks that it calls. A rank that had no weights also takes over what the
        first rank found out about them. All ranks call it together."""
        self.weights = Sharded(networks, mesh)

    @abstractmethod
    def __call__(self, sample: Rows, mask: Tensor, needs: frozenset[str] = frozenset()) -> Evidence:
        """With gradient. mask: [B, T]."""

    @abstractmethod
    def cut(self, sample: Rows, mask: Tensor) -> Sequence[Tensor]:
        """The rows of each pass without gradient, [n] of each. mask: [B, T]."""

    @torch.no_grad()
    def in_parts(self, sample: Rows, mask: Tensor, needs: frozenset[str] = frozenset()) -> Evidence:
        """The same without gradient, a few rows at a time. mask: [B, T].

        Ranks gather weights together, so a rank with fewer parts makes idle passes.
        """
        parts = self.cut(sample, mask)
        own = max(len(parts), 1)
        idle = self.weights.passes(own) - own if self.weights.lockstep else 0
        if own == 1:
            evidence = self(sample, mask, needs)
        else:
            said = [self(take(sample, part), mask[part.to(mask.device)], needs) for part in parts]
            evidence = take(concat(said), torch.cat(list(parts)).argsort())
        for _ in range(idle):
            self(take(sample, torch.zeros(1).long()), torch.zeros_like(mask[:1]), needs)
        return evidence
