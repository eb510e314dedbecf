"""Records of a language policy: sampling settings, rows of tokens, answers, its description."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tandem.contracts import at_least
from tandem.policies.engines.protocol import EngineOption, Handover, check_kind
from tandem.types import Picture, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are sampled."""

    dynamics: ClassVar[str] = "autoregressive"  # its steps
    in_time: ClassVar[bool] = True  # a step follows from those before it

    max_new_tokens: int
    temperature: float = 1.0  # of the logits; 0 takes the likeliest token
    top_p: float = 1.0  # below 1: the likeliest tokens that hold this mass; not for training
    top_k: int = 0  # above 0: the k likeliest tokens; not for training
    stop: Sequence[str] = ()  # a text that ends with one of these is finished
    max_prompt_tokens: int | None = None  # longer ones are left out; None: what the model holds
    max_rows: int = 512  # of one forward pass: memory, nothing else
    engine: EngineOption | None = None  # who samples; None: our own loop over the live weights
    staleness: Annotated[int, at_least(0)] = 0  # iterations that samples may be ahead of training
    order: Literal["exact", "ready"] = "exact"  # rows of its own iteration; or those that are there
    handover: Handover | None = None  # of weights to an engine; None: what suits them and the order
    # Of order=ready: iterations that are asked for beyond the present one; None: half of staleness.
    ahead: Annotated[int, at_least(0)] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        limits = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "max_rows": (self.max_rows >= 1, "at least 1"),
            "ahead": ((self.ahead or 0) <= self.staleness, "at most rollout.staleness"),
            "stop": (all(self.stop), "a list of texts that are not empty"),
        }
        for name, (holds, wanted) in limits.items():
            if not holds:
                raise ValueError(f"rollout.{name} is {getattr(self, name)!r}; it must be {wanted}")
        if self.engine is not None:
            check_kind(self.engine, "tokens")

    def handover_of(self, *, adapter: bool) -> Handover:
        """The mode that was chosen; else adapters are pinned by their names, and whole weights wait
        for the rows that are under way, or change under them where order does not matter."""
        if self.handover is not None:
            return self.handover
        whole = "drain" if self.order == "exact" else "in_flight"
        return "pinned" if adapter else whole

    @property
    def iterations_ahead(self) -> int:
        """Iterations beyond the present one whose rows are asked for."""
        if self.order == "exact":
            return self.staleness
        return -(-self.staleness // 2) if self.ahead is None else self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Rows of prompt and response, contiguous from column 0.

    Token t of a response is `tokens[b, prompt_length[b] + t]`; right of the last one stands 0.
    """

    tokens: Tensor  # [B, S] int64
    prompt_length: Tensor  # [B] int64
    temperature: Tensor  # [B] float32 that its log-probabilities are taken at, never 0
    # Of each row the pictures whose tokens stand in it; None: the policy reads texts alone.
    images: tuple[tuple[Picture, ...], ...] | None = None
    # [B, T] int64 of each token of a response the context that it stands in: those of one are read
    # without those of another, and a prompt is of context 0. None: each row is one context
    context: Tensor | None = None
    # The same answers behind the prompts that teachers read; None: these very rows.
    for_teacher: TokenSample | None = None
    # [B, T, K, 2] ids and log-probabilities of the likeliest tokens of each step, by a teacher on
    # a server; 0 of other teachers. None: nobody asked one.
    likeliest: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What can be known of a policy before its weights are there."""

    kind: Literal["tokens", "flow", "chain"]
    provides: frozenset[str]  # the per-step fields it can fill
    offloads: frozenset[str] = (
        frozenset()
    )  # of what it holds beside its weights, see trainer.offload


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPasses:
    """What a training forward reads of the longest row."""

    passes: int
    unread: int  # tokens at its end that no pass reads
    scored: int | None  # positions of all passes; None: those of its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was sampled, in the order of the rows. Every tensor is 0 after the end of its row."""

    tokens: Tensor  # [B, T] int64
    logp: Tensor  # [B, T] nats
    entropy: Tensor | None  # [B, T] nats; None: an engine did not say
    length: Tensor  # [B] int64
    truncated: Tensor  # [B] bool: the limit came before an end
    # [B, T] int64, the handover whose weights took each token; None: all are of the newest one
    version: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """What finishes an answer: an end token, or a text that ends with a stop string."""

    tokens: Sequence[int]
    strings: Sequence[str]
    decode: Callable[[list[list[int]]], Sequence[str]]  # special tokens are shown

    @property
    def tail(self) -> int:
        """Tokens that a stop string takes at most: each holds a byte or more; and four beside them,
        for a piece may begin otherwise."""
        return max(4 + len(stop.encode()) for stop in self.strings)

    def find_strings(self, tokens: Tensor, steps: range) -> Tensor:
        """Whether a stop string ends with each of these steps: [N, n] bool. tokens: [N, T]."""
        tails = [tokens[:, max(step + 1 - self.tail, 0) : step + 1].tolist() for step in steps]
        return torch.stack([self.hold_string(own, tokens.device) for own in tails], 1)

    def hold_string(self, rows: list[list[int]], device: torch.device) -> Tensor:
        """Whether a stop string stands in each of these rows: [N] bool."""
        hits = [any(stop in text for stop in self.strings) for text in self.decode(rows)]
        return torch.tensor(hits, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Prompts as an engine is asked to answer them, P prompts of G answers each."""

    prompts: Sequence[Prompt]
    encoded: Sequence[list[int]]  # token ids of each
    keys: Tensor  # [P, G] int64 of the draws of each answer
    group: Tensor  # [P x G] int64
    sampling: Sampling
    endings: Endings


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
