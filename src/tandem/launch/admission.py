"""Admission of prompts: those that a policy and its teachers can process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from tandem.config import ConfigError
from tandem.data import Data, InvalidRow, split_overlap
from tandem.data.records import HELD_OUT_TOO
from tandem.launch import pairs
from tandem.policies.base import Policy
from tandem.policies.language.token_policy import TokenPolicy
from tandem.settings.settings import Settings
from tandem.types import Admission, Prompt, split_refused

ADMIT = {
    "demonstrations": lambda policy, examples: policy.admit_answered(examples),
    "pairs": pairs.admit_pairs,
}


def admit_data(
    policy: Policy,
    data: Data,
    source: str,
    settings: Settings,
    *,
    gives: Set[str] = frozenset(),
) -> Data:
    """The data without prompts that are too long or cannot be encoded, which are quarantined.

    `source` names the split to train on; splits that the run does not read are unchanged.
    `gives`: fields of the sampling strategy; with "baseline", pairs are also combined with answers
    to others, and with "reprompts" a teacher reads other prompts.
    """
    ways = ADMIT | ({"pairs": pairs.admit_mismatched} if "baseline" in gives else {})
    passes = settings.evaluation.passes(policy.sampling, full=False)
    held_out = partial(pairs.admit_with_pairs, samplings=[one.sampling for one in passes])
    ways |= {"eval": held_out, "test": held_out}
    kept, left_out = {}, []
    for split in ("eval", "test", source):
        admit = ways.get(split, pairs.admit_with_pairs)
        prompts, dropped = admit(policy, data.splits[split])
        if split == source and not settings.evaluate and "reprompts" not in gives:
            prompts, unread = admit_taught(policy, prompts, source, gives)
            dropped += unread
        if split == source and not data.asks_again:
            prompts, known = split_overlap(prompts, (*kept["eval"], *kept["test"]))
            dropped += [(prompt, HELD_OUT_TOO) for prompt in known]
        # Only for images: in text data, height and width are ordinary fields.
        kept[split] = tuple(
            p if policy.paints or p.size is None else replace(p, size=None) for p in prompts
        )
        left_out += [
            InvalidRow.of_prompt(prompt, reason, within=split) for prompt, reason in dropped
        ]
    for split in (source, evaluated_split(settings)):
        if split is not None and data.splits[split] and not kept[split]:
            raise ConfigError(no_prompts_message(split, left_out))
    return replace(data, **kept, quarantine=(*data.quarantine, *left_out))


def evaluated_split(settings: Settings) -> str | None:
    """The held-out split that is used; None: no evaluation."""
    if settings.evaluate:
        return settings.evaluation.split
    return None if settings.evaluation.every is None else "eval"


def no_prompts_message(split: str, left_out: Sequence[InvalidRow]) -> str:
    """The error message if a split has no usable prompt, with the most frequent reasons."""
    own = [row.reason for row in left_out if row.file.startswith(f"{split} of ")]
    said = ", ".join(f"{count} x {why}" for why, count in Counter(own).most_common(3))
    asked = "; give evaluation and test other questions, or let data.held_out choose some"
    hint = asked if HELD_OUT_TOO in own else ""
    return f"the run can use none of the {len(own)} prompts of {split}: {said}{hint}"


def admit_taught(
    policy: Policy, prompts: Sequence[Prompt], source: str, gives: Set[str]
) -> Admission:
    """The prompts that their teacher can read with an answer, and the others with a reason: with
    the longest answer that may be sampled, with that of a demonstration, or with both of a pair."""
    teachers = policy.teachers if isinstance(policy, TokenPolicy) else None
    if teachers is None or teachers.positions is None:
        return [*prompts], []
    if policy.positions is not None and policy.positions <= teachers.positions:
        return [*prompts], []  # a teacher reads whatever the policy can
    new = policy.sampling.max_new_tokens if source == "train" or "samples" in gives else 0
    said = [new] * len(prompts)
    if source in ADMIT:
        answered = ((p.sides if source == "pairs" else (p,)) for p in prompts)
        for examples in zip(*answered, strict=True):
            texts = [one.shown_answer or "" for one in examples]
            ids = policy.chat.encode_answers(texts, examples)
            said = [max(most, len(own)) for most, own in zip(said, ids, strict=True)]
    asked = [len(ids) for ids in policy.chat.encode(prompts)]
    rows = zip(asked, said, teachers.room_of(prompts), strict=True)
    return split_refused(prompts, [_explain_long(*row, new) for row in rows])


def _explain_long(asked: int, said: int, room: int | None, new: int) -> str | None:
    """Why a teacher cannot read a prompt and an answer of so many tokens; None: it can."""
    if room is None or asked + said <= room:
        return None
    key = " (rollout.max_new_tokens)" if said == new else ""
    return f"has {asked} tokens and up to {said} in its answer{key}; its teacher reads {room}"
