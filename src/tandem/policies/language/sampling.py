"""Sampling of tokens: exact draws that depend only on a row's key and the position, and answers as
rows of a `Rollout`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from tandem import rng
from tandem.policies.language.chat import Chat
from tandem.policies.language.records import Answers, Questions, Sampling, TokenSample
from tandem.types import Prompt, Rollout, concat, widen

# exp is 0 below it, and 0 times it is 0, also after a product with a gradient: 0 * -inf is NaN.
NO_MASS = -1e4
# Probabilities that a CPU draws from at once: more would leave its cache, and each step would take
# their memory from the system and give it back.
IN_CACHE = 2**18
ONE_BY_ONE = 512  # the largest vocabulary in which every token gets noise in every draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The tokens drawn, one per row, with what is known of their distribution."""

    token: Tensor  # [N] int64
    logp: Tensor  # [N] nats under the distribution it was drawn from
    entropy: Tensor  # [N] nats of that distribution


def draw(logits: Tensor, keys: Tensor, sampling: Sampling) -> Draw:
    """A token for each row of logits [N, V]; keys: [N] int64, one per row and position.

    At temperature 0, logp and entropy are those of temperature 1.
    """
    rows, vocabulary = logits.shape
    if logits.device.type == "cpu":
        rows = max(IN_CACHE // vocabulary, 1)
    drawn = []
    for some, own_keys in zip(logits.split(rows), keys.split(rows), strict=True):
        logp = distribution(some, sampling)
        probability = logp.exp()
        if sampling.temperature == 0:
            token = logp.argmax(-1)
        elif vocabulary <= ONE_BY_ONE:
            token = gumbel_max(logp, own_keys, torch.arange(vocabulary, device=logp.device))
        else:
            token = gumbel_max_by_block(probability, own_keys)
        chosen = logp.gather(-1, token[:, None])[:, 0]
        # `entropy_of` in place: with a large vocabulary, allocation costs as much as the sum.
        entropy = -probability.mul_(logp.clamp_min_(NO_MASS)).sum(-1)
        drawn.append(Draw(token=token, logp=chosen, entropy=entropy))
    return concat(drawn)


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the sampled distribution, [N, V] in float32 or wider."""
    logits = widen(logits)
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    logp = logits.log_softmax(-1)
    if sampling.top_k > 0:
        logp = keep_top_k(logp, sampling.top_k)
    if sampling.top_p < 1:
        logp = keep_top_p(logp, sampling.top_p)
    return logp


def keep_top_k(logp: Tensor, k: int) -> Tensor:
    """The k most likely tokens of each row, renormalised: [B, V] -> [B, V] nats."""
    weakest = logp.topk(min(k, logp.shape[-1])).values[:, -1:]
    return logp.masked_fill(logp < weakest, -torch.inf).log_softmax(-1)


def keep_top_p(logp: Tensor, p: float) -> Tensor:
    """The smallest set of most likely tokens with a mass of p, renormalised.

    Shape: [B, V] -> [B, V] nats.
    """
    ordered, token = logp.sort(dim=-1, descending=True)
    mass = ordered.exp()
    outside = mass.cumsum(-1) - mass >= p
    outside = outside.new_zeros(logp.shape).scatter(-1, token, outside)
    return logp.masked_fill(outside, -torch.inf).log_softmax(-1)


def gumbel_max(logp: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """argmax(logp + Gumbel): a column of each row; the noise is keyed by row and token id.

    logp [B, N], keys [B], ids [B, N] -> [B].
    """
    # max gives the same indices as argmax, and is vectorised.
    return (logp + rng.gumbel(rng.at(keys[:, None], ids))).max(-1).indices


def gumbel_max_by_block(probability: Tensor, keys: Tensor) -> Tensor:
    """Gumbel-max over blocks of neighbouring token ids, then over the tokens of the winner.

    Exact: a block wins with the mass of its tokens. It needs about 2 sqrt(V) hashes instead of V.
    Two policies at total variation d differ in at most 6 d of the draws; measured, in about 2 d.
    Noise for the most likely tokens alone, with an inverse CDF for the others, would differ
    whenever one of the others wins, and finding the most likely ones costs more than the rest.

    probability [B, V], keys [B] -> [B].
    """
    rows, vocabulary = probability.shape
    size = 2 ** round(math.log2(vocabulary) / 2)
    if lacking := -vocabulary % size:  # else padding copies all of it
        probability = torch.nn.functional.pad(probability, (0, lacking))
    blocks = probability.view(rows, -1, size)
    block_ids = torch.arange(blocks.shape[1], device=probability.device)
    # Noise is keyed by token id, and for blocks by negative ids.
    block = gumbel_max(blocks.sum(-1).log(), keys, ids=-1 - block_ids)
    token_ids = block[:, None] * size + torch.arange(size, device=probability.device)
    inside = gumbel_max(probability.gather(-1, token_ids).log(), keys, ids=token_ids)
    return block * size + inside


def entropy_of(logp: Tensor) -> Tensor:
    """-sum p log p of each row of [N, V], [N] nats; entries without mass (logp = -inf) add 0."""
    return _Entropy.apply(logp)


class _Entropy(torch.autograd.Function):
    """The steps of autograd, bit for bit. It keeps logp alone, which log_softmax keeps as well;
    autograd would keep p and the bounded logp too, and take twice as many passes over [N, V]."""

    @staticmethod
    def forward(ctx: FunctionCtx, logp: Tensor) -> Tensor:
        ctx.save_for_backward(logp)
        return -logp.clamp_min(NO_MASS).mul_(logp.exp()).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (logp,) = ctx.saved_tensors
        probability, gradient = logp.exp(), -gradient[..., None]
        by_probability = logp.clamp_min(NO_MASS).mul_(gradient).mul_(probability)
        return by_probability.add_(probability.mul_(gradient))


def check_room(encoded: Sequence[list[int]], sampling: Sampling, positions: int | None) -> None:
    """Refuse prompts that leave too few positions for an answer; None: unlimited."""
    longest = max(len(tokens) for tokens in encoded)
    if positions is not None and longest + sampling.max_new_tokens > positions:
        raise ValueError(
            f"a prompt of {longest} tokens and rollout.max_new_tokens={sampling.max_new_tokens} "
            f"exceed the {positions} positions of the model; lower rollout.max_new_tokens or "
            "rollout.max_prompt_tokens"
        )


def check_length(sample: TokenSample, positions: int | None) -> None:
    """Refuse prompts with answers that exceed the positions; None: unlimited."""
    longest = sample.tokens.shape[1]
    if positions is not None and longest > positions:
        raise ValueError(
            f"a demonstration of {longest} tokens exceeds the {positions} positions of the model; "
            "leave it out of the data"
        )


def as_rollout(asked: Questions, answers: Answers, chat: Chat) -> Rollout:
    """The answers as a rollout: a row for each, prompt by prompt, on their device."""
    each = range(asked.keys.shape[1])
    prompts = tuple(prompt for prompt in asked.prompts for _ in each)
    encoded = [ids for ids in asked.encoded for _ in each]
    temperature = asked.sampling.temperature or 1.0
    sample = pack(encoded, answers.tokens, answers.length, temperature)
    texts = zip(answers.tokens.tolist(), answers.length.tolist(), strict=True)
    return Rollout(
        sample=replace(sample, images=chat.images(prompts)),
        outputs=chat.decode([tokens[:length] for tokens, length in texts]),
        prompts=prompts,
        mask=before(answers.length, answers.tokens.shape[1]),
        group=asked.group,
        key=asked.keys.flatten(),
        length=answers.length,
        truncated=answers.truncated,
        behaviour_logp=answers.logp,
        entropy=answers.entropy,
    )


def encode_examples(
    examples: Sequence[Prompt], *, chat: Chat, group: Tensor, positions: int | None
) -> Rollout:
    """The answer and end token of each example, as if they had been sampled.

    `group`: [B] int64.
    """
    texts = [chat.answer(example) for example in examples]
    answers = chat.encode_answers(texts, examples)
    length = torch.tensor([len(answer) for answer in answers], device=group.device)
    tokens = right_padded(answers, group.device)
    sample = pack(chat.encode(examples), tokens, length, 1.0)
    check_length(sample, positions)
    return Rollout(
        sample=replace(sample, images=chat.images(examples)),
        outputs=tuple(texts),
        prompts=tuple(examples),
        mask=before(length, tokens.shape[1]),
        group=group,
        length=length,
        truncated=torch.zeros_like(length, dtype=torch.bool),
    )


def pack(
    prompts: Sequence[list[int]], answers: Tensor, length: Tensor, temperature: float
) -> TokenSample:
    """Rows of a prompt and, right after it, its answer. answers: [B, T], 0 from `length` on."""
    prompt_length = torch.tensor([len(prompt) for prompt in prompts], device=answers.device)
    tokens = right_padded(prompts, answers.device)
    tokens = torch.nn.functional.pad(tokens, (0, answers.shape[1]))
    steps = torch.arange(answers.shape[1], device=answers.device)
    tokens.scatter_(1, prompt_length[:, None] + steps, answers)
    return TokenSample(
        tokens=tokens[:, : int((prompt_length + length).max())].contiguous(),
        prompt_length=prompt_length,
        temperature=torch.full(prompt_length.shape, temperature, device=answers.device),
    )


def cuts(num_prompts: int, group_size: int, *, max_rows: int) -> Iterator[tuple[slice, slice]]:
    """The prompts and samples of each pass: whole groups, or pieces of one that is too large."""
    prompts, samples = max(max_rows // group_size, 1), min(group_size, max_rows)
    for p in range(0, num_prompts, prompts):
        for s in range(0, group_size, samples):
            yield slice(p, p + prompts), slice(s, s + samples)


def right_padded(
    rows: Sequence[list], device: torch.device, dtype: torch.dtype = torch.int64, *, least: int = 0
) -> Tensor:
    """The rows as a tensor [B, T], padded with zeros to the longest one or to `least`."""
    width = max(least, *(len(row) for row in rows))
    filled = [[*row, *[0] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=dtype, device=device)


def before(length: Tensor, width: int) -> Tensor:
    """A mask, True for t < length: [B, width] bool."""
    return torch.arange(width, device=length.device) < length[:, None]
