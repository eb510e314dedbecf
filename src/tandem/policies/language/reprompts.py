"""Answers behind other prompts: what a teacher reads that is told more than the policy was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.policies.language.chat import Chat
from tandem.policies.language.records import TokenSample
from tandem.policies.language.rows import before, pack
from tandem.types import Rollout


def reprompted(rollout: Rollout, chat: Chat, limit: int | None) -> Rollout:
    """With the rows as a teacher reads them: token ids of the answers are copied, and never made of
    text again. Rows are not judged that would have more than `limit` tokens, or whose prompt holds
    characters that the tokenizer does not know.

    Raises ValueError where every prompt holds such.
    """
    given = {row: prompt for row, prompt in enumerate(rollout.reprompts) if prompt is not None}
    encoded = dict(zip(given, chat.encode([*given.values()]), strict=True))
    readable = {row: ids for row, ids in encoded.items() if chat.unknown not in ids}
    if given and not readable:
        strange = chat.strange(next(iter(given.values())), chat.unknown)
        raise ValueError(
            f"a re-prompt {strange}, and so do all others; set "
            "algorithm.sampling_strategy.reprompt.template to a text without"
        )
    own, lengths = _own_prompts(rollout.sample), rollout.length.tolist()
    taught = torch.zeros_like(rollout.truncated)
    for row, ids in readable.items():
        if limit is None or len(ids) + lengths[row] <= limit:
            own[row], taught[row] = ids, True
    sample = behind(own, rollout.sample, rollout.length, rollout.mask.shape[1])
    return replace(rollout, sample=replace(rollout.sample, for_teacher=sample), taught=taught)


def behind(
    prompts: Sequence[list[int]], sample: TokenSample, length: Tensor, width: int
) -> TokenSample:
    """The answers of a sample, of `length` [B] tokens, behind these prompts."""
    steps = torch.arange(width, device=length.device)
    column = (sample.prompt_length[:, None] + steps).clamp(max=sample.tokens.shape[1] - 1)
    answers = torch.where(before(length, width), sample.tokens.gather(1, column), 0)
    packed = pack(prompts, answers, length, 1.0)
    return replace(packed, temperature=sample.temperature)


def _own_prompts(sample: TokenSample) -> list[list[int]]:
    rows = zip(sample.tokens.tolist(), sample.prompt_length.tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]
