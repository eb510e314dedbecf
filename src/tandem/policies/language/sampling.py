"""Sampling of tokens from a causal language model, over its key-value cache: the local engine.

A token is drawn exactly, as a function of its row's key and position alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.language.rows import cuts, left_padded
from tandem.policies.weights import FULL, Precision
from tandem.types import concat

ONE_BY_ONE = 4096  # vocabulary up to which every token is given its noise in every draw
BLOCK = 256  # tokens of a larger one that are drawn as one first
COMPACT_BELOW = 0.75  # share of unfinished rows under which copying the cache pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One token per row."""

    token: Tensor  # [N] int64
    logp: Tensor  # [N] nats under the distribution it was drawn from
    entropy: Tensor  # [N] nats of that distribution


def draw(logits: Tensor, keys: Tensor, sampling: Sampling) -> Draw:
    """A token for each row of logits [N, V]; keys: [N] int64, one per row and position.

    At temperature 0 the numbers are those of temperature 1.
    """
    logp = distribution(logits, sampling)
    probability = logp.exp()
    if sampling.temperature == 0:
        token = logp.argmax(-1)
    elif logp.shape[-1] <= ONE_BY_ONE:
        token = gumbel_max(logp, keys, torch.arange(logp.shape[-1], device=logp.device))
    else:
        token = gumbel_max_by_block(probability, keys)
    chosen = logp.gather(-1, token[:, None])[:, 0]
    return Draw(token=token, logp=chosen, entropy=entropy_of(logp, probability))


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities that are sampled from, [N, V] in float32 or wider."""
    logits = widened(logits)
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    logp = logits.log_softmax(-1)
    if sampling.top_k > 0:
        logp = keep_top_k(logp, sampling.top_k)
    if sampling.top_p < 1:
        logp = keep_top_p(logp, sampling.top_p)
    return logp


def keep_top_k(logp: Tensor, k: int) -> Tensor:
    """The k likeliest tokens of each row, renormalised: [B, V] -> [B, V] nats."""
    weakest = logp.topk(min(k, logp.shape[-1])).values[:, -1:]
    return logp.masked_fill(logp < weakest, -torch.inf).log_softmax(-1)


def keep_top_p(logp: Tensor, p: float) -> Tensor:
    """The smallest set of likeliest tokens that holds a mass of p, renormalised.

    Shape: [B, V] -> [B, V] nats.
    """
    ordered, token = logp.sort(dim=-1, descending=True)
    mass = ordered.exp()
    outside = mass.cumsum(-1) - mass >= p
    outside = outside.new_zeros(logp.shape).scatter(-1, token, outside)
    return logp.masked_fill(outside, -torch.inf).log_softmax(-1)


def gumbel_max(logp: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """argmax(logp + Gumbel): a column of each row, drawn by a noise of its key and its id alone.

    logp [B, N], keys [B], ids [B, N] -> [B].
    """
    # max, whose indices are argmax's, is the one that is vectorised.
    return (logp + rng.gumbel(rng.at(keys[:, None], ids))).max(-1).indices


def gumbel_max_by_block(probability: Tensor, keys: Tensor) -> Tensor:
    """Gumbel-max over blocks of neighbouring token ids, then over the tokens of the winner.

    Exact: a block wins with the mass of its tokens. V / 256 + 256 hashes take the place of V.
    Two policies at total variation d part in at most 6 d of the draws; measured, in about 2 d.
    (Noise for the likeliest tokens alone and an inverse CDF for the others would part whenever
    one of the others wins, and to find the likeliest costs more than all the rest.). probability
    [B, V], keys [B] -> [B].
    """
    rows, vocabulary = probability.shape
    padded = torch.nn.functional.pad(probability, (0, -vocabulary % BLOCK))
    blocks = padded.view(rows, -1, BLOCK)
    block_ids = torch.arange(blocks.shape[1], device=probability.device)
    # The noise of a block is named by a negative id, that of a token by its own.
    block = gumbel_max(blocks.sum(-1).log(), keys, ids=-1 - block_ids)
    token_ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=probability.device)
    inside = gumbel_max(padded.gather(-1, token_ids).log(), keys, ids=token_ids)
    return block * BLOCK + inside


def entropy_of(logp: Tensor, probability: Tensor) -> Tensor:
    """-sum p log p, [N] nats; entries without mass (logp = -inf) add 0."""
    return -(probability * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(-1)


def widened(logits: Tensor) -> Tensor:
    """The same numbers in float32, or in float64 where they are. Of any shape [...]."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


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
        """Read one more token per row. `token`: [R] int64."""
        if self.mask is not None:
            self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.logits = self.forward(token[:, None], self.position)
        self.position = self.position + 1

    def keep(self, rows: Tensor) -> None:
        """Forget all other rows. rows: [N] int64."""
        self.remember(rows)
        self.keys, self.index, self.alive = self.keys[rows], self.index[rows], self.alive[rows]

    def remember(self, rows: Tensor) -> None:
        """The model's memory of these rows, each as often as it is named. `rows`: [N] int64."""
        self.cache.reorder_cache(rows)  # of all that gather rows, what every kind of layer has
        self.position = self.position[rows]
        if self.mask is not None:
            self.mask = self.mask[rows]


class Local:
    """The engine that needs no server, as it samples from the very weights that are trained:
    nothing is handed over, no second copy can be older, and no memory is given back."""

    def __init__(self, model: nn.Module, precision: Precision = FULL) -> None:
        self.model, self.precision = model, precision

    @torch.no_grad()
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """Sample keys.shape[1] answers to every prompt, prompt by prompt. keys: [P, G] int64.

        Noise depends on a row's key and its position alone, so neither cuts nor company move a
        token.
        """
        with self.precision.on(keys.device):
            parts = [
                write_answers(self.model, prompts[p], keys[p, s], sampling, endings)
                for p, s in cuts(*keys.shape, max_rows=sampling.max_rows)
            ]
        joined = concat(parts)
        longest = int(joined.length.max())
        names = ("tokens", "logp", "entropy")
        return replace(joined, **{name: getattr(joined, name)[:, :longest] for name in names})


def write_answers(
    model: nn.Module,
    prompts: Sequence[list[int]],
    keys: Tensor,
    sampling: Sampling,
    endings: Endings,
) -> Answers:
    """The answers of one pass, token by token. Rows that ended are left out where that pays.

    `keys`: [B] int64.
    """
    rows = Rows(model, prompts, keys)
    size, steps = len(rows.keys), sampling.max_new_tokens
    # A token holds a byte or more; four more than needed, for a piece may begin otherwise.
    tail = max((4 + len(stop.encode()) for stop in endings.strings), default=1)
    tokens = torch.zeros(size, steps, dtype=torch.int64, device=rows.keys.device)
    logp, entropy = (torch.zeros(size, steps, device=rows.keys.device) for _ in range(2))
    length, truncated = torch.zeros_like(tokens[:, 0]), torch.zeros_like(tokens[:, 0]).bool()
    for step in range(steps):
        drawn = draw(rows.logits, rng.key(rows.keys, step), sampling)
        tokens[rows.index, step] = drawn.token * rows.alive
        logp[rows.index, step] = torch.where(rows.alive, drawn.logp, 0).float()
        entropy[rows.index, step] = torch.where(rows.alive, drawn.entropy, 0).float()
        length[rows.index] += rows.alive
        written = tokens[rows.index, max(step + 1 - tail, 0) : step + 1]
        rows.alive = rows.alive & ~find_ended(written, endings)
        alive = int(rows.alive.sum())
        if alive == 0 or step + 1 == steps:
            break
        token = drawn.token
        if alive < COMPACT_BELOW * len(token):
            kept = rows.alive.nonzero()[:, 0]
            rows.keep(kept)
            token = token[kept]
        rows.advance(token)
    truncated[rows.index] = rows.alive
    return Answers(tokens=tokens, logp=logp, entropy=entropy, length=length, truncated=truncated)


def find_ended(written: Tensor, endings: Endings) -> Tensor:
    """Whether each row ends with its last token, [N] bool.

    written: [N, K], the last tokens of each, enough of them for any stop string.
    """
    token = written[:, -1]
    ends = torch.tensor(endings.tokens, dtype=token.dtype, device=token.device)
    over = (token[:, None] == ends).any(1)
    if not endings.strings:
        return over
    texts = endings.decode(written.tolist())
    hits = [any(stop in text for stop in endings.strings) for text in texts]
    return over | torch.tensor(hits, device=token.device)


@cache
def arguments(model: type[nn.Module]) -> frozenset[str]:
    """The names that its forward takes: families differ."""
    return frozenset(inspect.signature(model.forward).parameters)
