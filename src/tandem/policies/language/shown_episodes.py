"""Demonstrations of episodes: conversations in which every assistant turn is a move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import torch
from torch import Tensor

from tandem.data.records import NOT_SHOWN
from tandem.policies.language.bridge import Bridge
from tandem.policies.language.courses import WORLD
from tandem.policies.language.message_frames import Unreadable, count_marks
from tandem.policies.language.sampling import before, check_length, pack, right_padded
from tandem.types import Admission, Prompt, Rollout, split_refused


@dataclass(slots=True)
class Shown:
    """The tokens after a prompt, with the turn of each."""

    question: Prompt  # up to the first move
    tokens: list[int]
    turn: list[int]
    output: str = ""  # the last move

    def add(self, ids: Sequence[int], number: int) -> None:
        self.tokens += ids
        self.turn += [number] * len(ids)


def encode_demonstration(example: Prompt, bridge: Bridge) -> Shown:
    """The moves of a demonstration and the messages between them, with the ids that a policy making
    these moves would have read."""
    parts = list(turns_of(example))
    row = Shown(question_of(example), [], [])
    left = iter(example.images[len(row.question.images) :])
    for number, (said, move) in enumerate(parts, 1):
        if number > 1:
            images = list(islice(left, count_marks(said) if example.images else 0))
            row.add(bridge.turn_ids(said, row.tokens, images), WORLD)
        row.add(bridge.chat.encode_answers([move], [example])[0], number)
        row.output = move
    return row


def turns_of(example: Prompt) -> Iterator[tuple[Sequence[Mapping[str, str]], str]]:
    """Each move, with the messages since the previous one. An answer is the only or last move."""
    said: list[Mapping[str, str]] = []
    moved = False
    if any(is_of_policy(one) and one.get("tool_calls") for one in example.messages or ()):
        raise ValueError(f"prompt {example.id} of {example.source}: {NOT_SHOWN}")
    for is_move, messages in groupby(example.messages or (), is_of_policy):
        for message in messages:
            if is_move:
                yield said, message["content"]
                said, moved = [], True
            else:
                said.append(message)
    if said or not moved:
        if example.answer is None:
            raise ValueError(
                f"prompt {example.id} of {example.source} is not a demonstration: an episode must "
                "end with an assistant message"
            )
        yield said, example.answer


def question_of(example: Prompt) -> Prompt:
    """The prompt up to the first move."""
    if example.messages is None:
        return example
    first = next(
        (i for i, message in enumerate(example.messages) if is_of_policy(message)),
        len(example.messages),
    )
    asked = example.messages[:first]
    shown = example.images[: count_marks(asked)]
    return replace(example, messages=tuple(asked), images=shown)


def is_of_policy(message: Mapping[str, str]) -> bool:
    return message["role"] == "assistant"


def encode(
    examples: Sequence[Prompt], *, bridge: Bridge, group: Tensor, positions: int | None
) -> Rollout:
    """One row per demonstration, as if its moves had been sampled. `group`: [B] int64."""
    rows = [encode_demonstration(example, bridge) for example in examples]
    length = torch.tensor([len(row.tokens) for row in rows], device=group.device)
    tokens = right_padded([row.tokens for row in rows], group.device)
    turn = right_padded([row.turn for row in rows], group.device)
    sample = pack(bridge.chat.encode([row.question for row in rows]), tokens, length, 1.0)
    check_length(sample, positions)
    return Rollout(
        sample=replace(sample, images=bridge.chat.images(examples)),
        outputs=tuple(row.output for row in rows),
        prompts=tuple(examples),
        mask=before(length, tokens.shape[1]) & (turn != WORLD),
        group=group,
        length=length,
        truncated=torch.zeros_like(length, dtype=torch.bool),
        turn=turn,
    )


def admit(
    examples: Sequence[Prompt], *, bridge: Bridge, limit: int | None, positions: int | None
) -> Admission:
    """Demonstrations that fit, and the others with a reason. limit: tokens of a prompt."""
    questions = [question_of(example) for example in examples]
    asked, refused = bridge.chat.admit(questions, limit)
    reasons = {prompt.id: reason for prompt, reason in refused}
    lengths = dict(
        zip([prompt.id for prompt in asked], map(len, bridge.chat.encode(asked)), strict=True)
    )
    faults = []
    for example in examples:
        moves = [move for _, move in turns_of(example)]
        shown = bridge.chat.encode_answers(moves, [example] * len(moves))
        strange = bridge.chat.faults(moves, shown)
        reason = next(filter(None, [reasons.get(example.id), *strange]), None)
        if reason is None:
            reason = refuse_moves(example, lengths[example.id], bridge, positions)
        faults.append(reason)
    return split_refused(examples, faults)


def refuse_moves(example: Prompt, length: int, bridge: Bridge, positions: int | None) -> str | None:
    """Why the moves of a demonstration cannot be trained behind a prompt of `length` tokens; None:
    they can."""
    try:
        total = length + len(encode_demonstration(example, bridge).tokens)
    except Unreadable as error:
        return str(error)
    if positions is None or total <= positions:
        return None
    return f"has {total} tokens with its moves, more than the model's limit of {positions}"
