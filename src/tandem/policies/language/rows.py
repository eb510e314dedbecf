"""Rows of tokens: as a `Rollout`, and as a network reads them, padded to the longest or packed.

Packed rows lie behind one another in a row of the pass. Each begins at position 0 again, and
without a mask and a cache that is what keeps transformers' attention within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem.experience import shares
from tandem.policies.language.chat import Chat
from tandem.policies.language.records import Answers, Sampling, TokenSample
from tandem.types import Prompt, Rollout

if TYPE_CHECKING:
    from tandem.policies.language.prefix import Prefix

EMPTY = 1 / 16  # share of places that may stay empty, beside those that are taken


def check_room(encoded: Sequence[list[int]], sampling: Sampling, positions: int | None) -> None:
    """Refuse prompts that leave too few positions for an answer; None: there is no limit."""
    longest = max(len(tokens) for tokens in encoded)
    if positions is not None and longest + sampling.max_new_tokens > positions:
        raise ValueError(
            f"a prompt of {longest} tokens and rollout.max_new_tokens={sampling.max_new_tokens} "
            f"pass the {positions} positions of the model; lower rollout.max_new_tokens or "
            "rollout.max_prompt_tokens"
        )


def check_length(sample: TokenSample, positions: int | None) -> None:
    """Refuse answers that pass the positions with their prompts; None: there is no limit."""
    longest = sample.tokens.shape[1]
    if positions is not None and longest > positions:
        raise ValueError(
            f"a demonstration of {longest} tokens passes the {positions} positions of the model; "
            "leave it out of the data"
        )


def as_rollout(
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    answers: Answers,
    *,
    chat: Chat,
    group: Tensor,
    temperature: float,
) -> Rollout:
    """One row per answer; as many answers to each prompt as there are rows for it.

    `group`: [B] int64.
    """
    rows = torch.arange(len(prompts)).repeat_interleave(len(answers.tokens) // len(prompts))
    rows = rows.tolist()
    asked = tuple(prompts[i] for i in rows)
    sample = pack([encoded[i] for i in rows], answers.tokens, answers.length, temperature)
    texts = zip(answers.tokens.tolist(), answers.length.tolist(), strict=True)
    return Rollout(
        sample=replace(sample, images=chat.images(asked)),
        outputs=chat.decode([tokens[:length] for tokens, length in texts]),
        prompts=asked,
        mask=before(answers.length, answers.tokens.shape[1]),
        group=group,
        length=answers.length,
        truncated=answers.truncated,
        behaviour_logp=answers.logp,
        entropy=answers.entropy,
    )


def encode_examples(
    examples: Sequence[Prompt], *, chat: Chat, group: Tensor, positions: int | None
) -> Rollout:
    """The answer of each example and the end token, as if they had been sampled.

    `group`: [B] int64.
    """
    texts = [chat.answer(example) for example in examples]
    answers = chat.encode_answers(texts)
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
    """Each prompt and, right behind it, its answer. answers: [B, T], 0 from `length` on."""
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


def right_padded(
    rows: Sequence[list], device: torch.device, dtype: torch.dtype = torch.int64, *, least: int = 0
) -> Tensor:
    """[B, T], T the longest or `least`; zeros on the right."""
    width = max(least, *(len(row) for row in rows))
    filled = [[*row, *[0] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=dtype, device=device)


def before(length: Tensor, width: int) -> Tensor:
    """True for t < length: [B, width] bool."""
    return torch.arange(width, device=length.device) < length[:, None]


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
    """A row for each row, as wide as the longest one. Both are [B, T]."""
    width = max(int(read.max()), 1)
    return Layout(
        tokens=tokens[:, :width], start=torch.arange(len(read), device=read.device) * width
    )


def packed(tokens: Tensor, read: Tensor) -> Layout:
    """As many rows as leave few places empty: attention costs the square of their width.

    Both are [B, T].
    """
    return _behind_one_another(tokens, read, _shelves(read.tolist()))


def packed_in_one(tokens: Tensor, read: Tensor) -> Layout:
    """A single row, for attention that costs nothing between rows: flash's of varying lengths.

    Both are [B, T].
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
