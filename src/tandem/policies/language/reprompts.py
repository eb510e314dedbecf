"""Re-prompts: the same answers after other prompts, which tell a teacher more than the policy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tandem import distributed
from tandem.policies.language.chat import Chat
from tandem.policies.language.records import TokenSample
from tandem.policies.language.sampling import before, pack
from tandem.stop import Stop
from tandem.types import Prompt, Rollout

log = logging.getLogger(__name__)


def with_reprompts(rollout: Rollout, chat: Chat, limit: int | None) -> Rollout:
    """The rollout with rows as a teacher reads them: ids of the answers are copied, never encoded
    again. Rows are not judged if they would exceed `limit` tokens, or if their prompt contains
    characters that the tokenizer does not know.

    Raises Stop, on all ranks, if every prompt of every rank contains such characters.
    """
    given = {row: prompt for row, prompt in enumerate(rollout.reprompts) if prompt is not None}
    encoded = dict(zip(given, chat.encode([*given.values()]), strict=True))
    readable = {row: ids for row, ids in encoded.items() if chat.unknown not in ids}
    _check_readable([*given.values()], len(readable), chat)
    own, lengths = _own_prompts(rollout.sample), rollout.length.tolist()
    taught = torch.zeros_like(rollout.truncated)
    for row, ids in readable.items():
        if limit is None or len(ids) + lengths[row] <= limit:
            own[row], taught[row] = ids, True
    sample = behind(own, rollout.sample, rollout.length, rollout.mask.shape[1])
    return replace(rollout, sample=replace(rollout.sample, for_teacher=sample), taught=taught)


def _check_readable(given: Sequence[Prompt], readable: int, chat: Chat) -> None:
    """Synchronises all ranks, so that none raises while others wait for it."""
    counts = distributed.all_sum(torch.tensor([len(given), readable]))
    everywhere, read = counts.tolist()
    if everywhere and not read:
        own = [chat.strange(chat.text(prompt), chat.unknown) for prompt in given[:1]]
        raise Stop(
            f"a re-prompt {distributed.all_gather_object(own)[0]}, and so do all others; set "
            "algorithm.sampling_strategy.reprompt.template to a text without them"
        )
    if read < everywhere and distributed.is_first():
        _warn_once(
            "some re-prompts contain characters that the tokenizer does not know; their rows have "
            "no teacher (actor/taught is the share of steps with one)"
        )


@cache
def _warn_once(said: str) -> None:
    log.warning(said)


def behind(
    prompts: Sequence[list[int]], sample: TokenSample, length: Tensor, width: int
) -> TokenSample:
    """The answers of a sample, with `length` [B] tokens, after these prompts."""
    steps = torch.arange(width, device=length.device)
    column = (sample.prompt_length[:, None] + steps).clamp(max=sample.tokens.shape[1] - 1)
    answers = torch.where(before(length, width), sample.tokens.gather(1, column), 0)
    packed = pack(prompts, answers, length, 1.0)
    return replace(packed, temperature=sample.temperature, context=sample.context)


def _own_prompts(sample: TokenSample) -> list[list[int]]:
    rows = zip(sample.tokens.tolist(), sample.prompt_length.tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]
