"""Records of a language policy: sampling settings, rows of tokens, answers, its description."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tandem.contracts import at_least
from tandem.policies.engines.protocol import EngineOption, Handover, check_kind
from tandem.types import Picture, Prompt

# An escape of a line end or a tab that no shell has read; LaTeX words go on with a small letter.
ESCAPE = re.compile(r"\\[nrt](?![a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling options of answers."""

    dynamics: ClassVar[str] = "autoregressive"  # kind of its steps
    in_time: ClassVar[bool] = True  # a step depends on earlier ones

    max_new_tokens: int  # largest number of tokens of an answer; longer ones are truncated
    temperature: float = 1.0  # temperature of the logits; 0: greedy
    top_p: float = 1.0  # mass of the most likely tokens to sample from; 1: all; training needs 1
    top_k: int = 0  # the most likely tokens to sample from; 0: all; training needs 0
    stop: Sequence[str] = ()  # texts after which an answer ends
    max_prompt_tokens: int | None = None  # longer prompts are left out; null: the model's limit
    max_rows: int = 512  # rows of a forward pass: more take memory, and less time
    # true: on a GPU the local engine records a decoding step and replays it, as launching kernels
    # takes most of the time.
    cuda_graphs: bool = True
    # Engine that samples; null: the policy itself, with live weights.
    engine: EngineOption | None = None
    staleness: Annotated[int, at_least(0)] = 0  # iterations that samples may be ahead of training
    # exact: an iteration's own rows; ready: any complete groups.
    order: Literal["exact", "ready"] = "exact"
    handover: Handover | None = None  # how an engine gets weights; null: by weights and order
    # Iterations requested beyond the current one with order=ready; null: half of staleness.
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
        if any(map(ESCAPE.search, self.stop)):
            raise ValueError(
                f"rollout.stop={[*self.stop]} has line ends as two characters, a backslash and a "
                "letter, and no answer stops there; in a shell write $'rollout.stop=[\"\\n\\n\"]'"
            )
        if self.engine is not None:
            check_kind(self.engine, "tokens")

    def handover_of(self, *, adapter: bool) -> Handover:
        """The configured mode; by default adapters are pinned by name, and whole weights wait for
        unfinished rows, or change during them if order=ready."""
        if self.handover is not None:
            return self.handover
        whole = "drain" if self.order == "exact" else "in_flight"
        return "pinned" if adapter else whole

    @property
    def iterations_ahead(self) -> int:
        """Iterations beyond the current one whose rows are requested."""
        if self.order == "exact":
            return self.staleness
        return -(-self.staleness // 2) if self.ahead is None else self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Rows of prompt and response, contiguous from column 0.

    Token t of a response is `tokens[b, prompt_length[b] + t]`; after the last token there are 0s.
    """

    tokens: Tensor  # [B, S] int64
    prompt_length: Tensor  # [B] int64
    temperature: Tensor  # [B] float32 of its log-probabilities, never 0
    # Images of each row, whose tokens it contains; None: the policy reads text alone.
    images: tuple[tuple[Picture, ...], ...] | None = None
    # [B, T] int64 context of each response token. Contexts are read separately; the prompt belongs
    # to context 0. None: each row is one context.
    context: Tensor | None = None
    # The same answers after the prompts that teachers read; None: these rows themselves.
    for_teacher: TokenSample | None = None
    # [B, T, K, 2] ids and log-probabilities of the most likely tokens of each step, from a teacher
    # on a server; 0 for other teachers. None: no server was asked.
    likeliest: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Facts of a policy that are known before its weights are loaded."""

    kind: Literal["tokens", "flow", "chain"]
    provides: frozenset[str]  # the per-step fields it can fill
    offloads: frozenset[str] = frozenset()  # parts besides the trained weights, see trainer.offload


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPasses:
    """Passes of a training forward over the longest row."""

    passes: int
    unread: int  # tokens at its end that no pass reads
    scored: int | None  # positions scored in all passes; None: those of its answer
    copies: int = 0  # of the trained weights, kept for the passes of later epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Sampled answers, in row order. Every tensor is 0 after the end of its row."""

    tokens: Tensor  # [B, T] int64
    logp: Tensor  # [B, T] nats
    entropy: Tensor | None  # [B, T] nats; None: the engine does not report it
    length: Tensor  # [B] int64
    truncated: Tensor  # [B] bool: the limit came before an end token
    # [B, T] int64, version of the weights of each token; None: the newest as the row was begun
    version: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """Ends of an answer: an end token, or text that ends with a stop string."""

    tokens: Sequence[int]
    strings: Sequence[str]
    decode: Callable[[list[list[int]]], Sequence[str]]  # keeps special tokens

    @property
    def tail(self) -> int:
        """The most tokens that contain a stop string: one per byte, and four more because a decoded
        piece may begin differently."""
        return max(4 + len(stop.encode()) for stop in self.strings)

    def find_strings(self, tokens: Tensor, steps: range) -> Tensor:
        """Whether the text ends with a stop string at each of these steps: [N, n] bool. tokens:
        [N, T]."""
        tails = [tokens[:, max(step + 1 - self.tail, 0) : step + 1].tolist() for step in steps]
        return torch.stack([self.hold_string(own, tokens.device) for own in tails], 1)

    def hold_string(self, rows: list[list[int]], device: torch.device) -> Tensor:
        """Whether each of these rows contains a stop string: [N] bool."""
        hits = [any(stop in text for stop in self.strings) for text in self.decode(rows)]
        return torch.tensor(hits, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Prompts for an engine to answer: P prompts with G answers each."""

    prompts: Sequence[Prompt]
    encoded: Sequence[list[int]]  # token ids of each
    keys: Tensor  # [P, G] int64, noise keys of the answers
    group: Tensor  # [P x G] int64
    sampling: Sampling
    endings: Endings


class PromptIds(list[int]):
    """Token ids of a prompt, with the images whose tokens it contains, in order.

    marked: the same with one token per image, for servers that expand it themselves; banned: tokens
    that are never sampled.
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
