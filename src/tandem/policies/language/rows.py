"""Rows of tokens as a `Rollout`, and back: prompts and answers behind one another, padded, cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tandem.policies.language.chat import Chat
from tandem.policies.language.records import Answers, Questions, Sampling, TokenSample
from tandem.policies.weights import Replicated
from tandem.types import Evidence, Prompt, Rollout, concat, take

Rows = TypeVar("Rows")


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


def as_rollout(asked: Questions, answers: Answers, chat: Chat) -> Rollout:
    """One row per answer, prompt by prompt, on the device of the answers."""
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


def find_alike(sample: TokenSample, mask: Tensor) -> tuple[Tensor, Tensor] | None:
    """One row of each kind, [R] int64, and of each row [B] its place among them. mask: [B, T].

    None: no two are alike, or an accelerator would have to be waited for to tell.
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
    """Where the N steps of a mask [B, T] stand, and what was taken there."""

    row: Tensor  # [N] int64
    step: Tensor  # [N] int64
    column: Tensor  # [N] int64 of the token in its row; the logits stand one column before
    token: Tensor  # [N] int64
    temperature: Tensor  # [N]

    @classmethod
    def of(cls, sample: TokenSample, mask: Tensor) -> TokenIndex:
        """The places of the tokens of a mask [B, T]."""
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
        """What stands one column before each token. [R, S, D] -> [N, D].

        start: [B], where each row begins among the R x S states.
        """
        flat = start[self.row] + self.column - 1
        return states.flatten(0, 1).index_select(0, flat)


class RowScorer(ABC, Generic[Rows]):
    """What gives the values of the taken tokens of a sample's rows."""

    weights: Replicated

    @abstractmethod
    def __call__(self, sample: Rows, mask: Tensor, needs: frozenset[str] = frozenset()) -> Evidence:
        """With gradient. mask: [B, T]."""

    @abstractmethod
    def cut(self, sample: Rows, mask: Tensor) -> Sequence[Tensor]:
        """The rows of each pass without gradient, [n] of each. mask: [B, T]."""

    @torch.no_grad()
    def in_parts(self, sample: Rows, mask: Tensor, needs: frozenset[str] = frozenset()) -> Evidence:
        """The same without gradient, a few rows at a time. mask: [B, T].

        Ranks gather weights together: one with fewer parts than another makes idle passes.
        """
        parts = self.cut(sample, mask)
        own = max(len(parts), 1)
        idle = self.weights.passes(own) - own if self.weights.paced else 0
        if own == 1:
            evidence = self(sample, mask, needs)
        else:
            said = [self(take(sample, part), mask[part.to(mask.device)], needs) for part in parts]
            evidence = take(concat(said), torch.cat(list(parts)).argsort())
        for _ in range(idle):
            self(take(sample, torch.zeros(1).long()), torch.zeros_like(mask[:1]), needs)
        return evidence
