"""The local rollout engine: our own loop over a causal language model and its key-value cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.policies.language.sampling import Draw, Sampling, draw
from tandem.policies.weights import Precision

COMPACT_BELOW = 0.75  # share of unfinished rows under which copying the cache pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was sampled, in the order of the rows. Every tensor is 0 after the end of its row."""

    tokens: Tensor  # [B, T] int64
    logp: Tensor  # [B, T] nats
    entropy: Tensor | None  # [B, T] nats; None: an engine did not say
    length: Tensor  # [B] int64
    truncated: Tensor  # [B] bool: the limit came before an end

    @classmethod
    def blank(cls, rows: int, steps: int, device: torch.device) -> Answers:
        tokens = torch.zeros(rows, steps, dtype=torch.int64, device=device)
        return cls(
            tokens=tokens,
            logp=torch.zeros(rows, steps, device=device),
            entropy=torch.zeros(rows, steps, device=device),
            length=torch.zeros_like(tokens[:, 0]),
            truncated=torch.zeros(rows, dtype=torch.bool, device=device),
        )

    def write(self, rows: Tensor, alive: Tensor, step: int, drawn: Draw) -> None:
        self.tokens[rows, step] = drawn.token * alive
        self.logp[rows, step] = torch.where(alive, drawn.logp, 0).float()
        self.entropy[rows, step] = torch.where(alive, drawn.entropy, 0).float()
        self.length[rows] += alive

    def last(self, rows: Tensor, step: int, count: int) -> Tensor:
        """The tokens of these rows up to and with `step`, `count` at most. [N, count or less]."""
        return self.tokens[rows, max(step + 1 - count, 0) : step + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """What finishes an answer: an end token, or a text that ends with a stop string."""

    tokens: Sequence[int]
    strings: Sequence[str]
    decode: Callable[[list[list[int]]], Sequence[str]]  # special tokens are shown

    def reached(self, token: Tensor, written: Callable[[int], Tensor]) -> Tensor:
        """[N] bool. token: [N], the last ones; written(K): the last K or fewer of each row."""
        ends = torch.tensor(self.tokens, dtype=token.dtype, device=token.device)
        over = (token[:, None] == ends).any(1)
        if not self.strings:
            return over
        # A token holds a byte or more; four more than needed, for a piece may begin otherwise.
        tail = written(max(len(stop.encode()) for stop in self.strings) + 4)
        texts = self.decode(tail.tolist())
        hits = [any(stop in text for stop in self.strings) for text in texts]
        return over | torch.tensor(hits, device=token.device)


class Rows:
    """The rows that are being written, and the model's memory of them."""

    def __init__(self, model: nn.Module, prompts: Sequence[list[int]], keys: Tensor) -> None:
        """One forward pass over each prompt, then a row for each entry of keys [P, G]."""
        self.model, self.cache = model, None
        self.keys = keys.flatten()
        self.index = torch.arange(len(self.keys), device=keys.device)  # place in the answers
        self.alive = torch.ones_like(self.index, dtype=torch.bool)
        tokens, mask = left_padded(prompts, keys.device)
        self.mask = None if mask.all() else mask  # no padding, no mask: the faster attention
        self.position = mask.sum(1, keepdim=True)
        self.logits = self.forward(tokens, (mask.cumsum(1) - 1).clamp(min=0))
        if keys.shape[1] > 1:
            places = self.index // keys.shape[1]
            self.remember(places)
            self.logits = self.logits[places]

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Logits after the last column, [N, V]; the cache grows by the columns of tokens."""
        given = {"position_ids": position, "logits_to_keep": 1}
        known = {name: given[name] for name in given if name in arguments(type(self.model))}
        out = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            **known,
        )
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def advance(self, token: Tensor) -> None:
        """Read one more token per row."""
        if self.mask is not None:
            self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.logits = self.forward(token[:, None], self.position)
        self.position = self.position + 1

    def keep(self, rows: Tensor) -> None:
        """Forget all other rows. rows: [N] int64."""
        self.remember(rows)
        self.keys, self.index, self.alive = self.keys[rows], self.index[rows], self.alive[rows]

    def remember(self, rows: Tensor) -> None:
        """The model's memory of these rows, each as often as it is named."""
        self.cache.reorder_cache(rows)  # of all that gather rows, what every kind of layer has
        self.position = self.position[rows]
        if self.mask is not None:
            self.mask = self.mask[rows]


class Local:
    """The engine that needs no server, as it samples from the very weights that are trained:
    nothing is handed over, no second copy can be older, and no memory is given back."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model, self.precision = model, precision

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        with self.precision.on(keys.device):
            return answer(self.model, prompts, keys, sampling=sampling, endings=endings)


@torch.no_grad()
def answer(
    model: nn.Module,
    prompts: Sequence[list[int]],
    keys: Tensor,
    *,
    sampling: Sampling,
    endings: Endings,
) -> Answers:
    """Sample keys.shape[1] answers to every prompt, prompt by prompt. keys: [P, G] int64.

    Noise depends on a row's key and its position alone, so neither cuts nor company move a token.
    """
    parts = [
        _answer(Rows(model, prompts[rows], keys[rows, samples]), sampling, endings)
        for rows, samples in cuts(*keys.shape, max_rows=sampling.max_rows)
    ]
    joined = {f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Answers)}
    longest = int(joined["length"].max())
    shorter = {name: joined[name][:, :longest] for name in ("tokens", "logp", "entropy")}
    return Answers(**joined | shorter)


def _answer(rows: Rows, sampling: Sampling, endings: Endings) -> Answers:
    answers = Answers.blank(len(rows.keys), sampling.max_new_tokens, rows.keys.device)
    for step in range(sampling.max_new_tokens):
        drawn = draw(rows.logits, rng.key(rows.keys, step), sampling)
        answers.write(rows.index, rows.alive, step, drawn)
        written = partial(answers.last, rows.index, step)
        rows.alive = rows.alive & ~endings.reached(drawn.token, written)
        alive = int(rows.alive.sum())
        if alive == 0 or step + 1 == sampling.max_new_tokens:
            break
        token = drawn.token
        if alive < COMPACT_BELOW * len(token):
            kept = rows.alive.nonzero()[:, 0]
            rows.keep(kept)
            token = token[kept]
        rows.advance(token)
    answers.truncated[rows.index] = rows.alive
    return answers


def cuts(num_prompts: int, group_size: int, *, max_rows: int) -> Iterator[tuple[slice, slice]]:
    """Prompts and samples of each pass: whole groups, or pieces of a group that is too large."""
    prompts, samples = max(max_rows // group_size, 1), min(group_size, max_rows)
    for p in range(0, num_prompts, prompts):
        for s in range(0, group_size, samples):
            yield slice(p, p + prompts), slice(s, s + samples)


def left_padded(prompts: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask (1 = token), both [P, longest] int64."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens, device=device), torch.tensor(mask, device=device)


@cache
def arguments(model: type[nn.Module]) -> frozenset[str]:
    """The names that its forward takes: families differ."""
    return frozenset(inspect.signature(model.forward).parameters)
