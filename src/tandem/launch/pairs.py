"""Pairs of answers: completed by a policy, and admitted if they fit."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tandem.data import Data, InvalidRow
from tandem.data.contrast import add_rejected
from tandem.data.rows import read_rows
from tandem.policies.base import Policy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.policies.language.token_policy import TokenPolicy
from tandem.record import durable, jsonl
from tandem.types import Admission, Prompt, split_refused

SIDES = ("chosen", "rejected")


def complete_pairs(policy: TokenPolicy, data: Data, file: Path, seed: int) -> Data:
    """The data with rejected answers sampled from the policy, cached in `file`.

    Prompts without a wrong answer make no pair; held-out prompts are unchanged.
    """
    splits = {split: data.splits[split] for split in ("pairs", "eval", "test")}
    if not file.exists():
        every = [p for prompts in splits.values() for p in prompts]
        with _waiting_for_others(file):
            if not file.exists():
                _make(policy, every, file, data.tries, seed)
    known = {pair.id: pair for pair in read_rows(file, option="cache_dir").prompts}
    pairs, *held_out = (
        tuple(_fill_pair(prompt, known.get(prompt.id)) for prompt in prompts)
        for prompts in splits.values()
    )
    silent = [
        InvalidRow.of_prompt(p, f"right in {data.tries} tries", within="pairs")
        for p in pairs
        if p.rejected is None
    ]
    return replace(
        data,
        pairs=tuple(p for p in pairs if p.rejected is not None),
        eval=held_out[0],
        test=held_out[1],
        tries=None,
        quarantine=(*data.quarantine, *silent),
    )


@contextmanager
def _waiting_for_others(file: Path) -> Iterator[None]:
    """A context for one rank or run at a time: the others read the file that the first one writes.
    Without locks on the file system it is for all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill_pair(prompt: Prompt, pair: Prompt | None) -> Prompt:
    return prompt if pair is None else replace(prompt, chosen=pair.chosen, rejected=pair.rejected)


def _make(
    policy: TokenPolicy, prompts: Sequence[Prompt], file: Path, tries: int, seed: int
) -> None:
    made, _ = add_rejected(policy, prompts, tries=tries, seed=seed)
    if not made:
        raise ValueError(
            f"data.tries={tries}: the starting model answers none of {len(prompts)} prompts "
            "wrongly; give pairs with data=jsonl, or sample them with algorithm=dpo_online"
        )
    print(f"pairs       {len(made)} of {len(prompts)} prompts, kept in {file}")
    _keep(file, made)


def _keep(file: Path, pairs: Sequence[Prompt]) -> None:
    """Write pairs as rows of `data=jsonl`."""
    rows = [
        {
            "id": pair.id,
            "source": pair.source,
            "prompt": pair.text,
            "messages": pair.messages,
            "answer": pair.answer,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
        }
        for pair in pairs
    ]
    durable.replace(file, jsonl.encode(rows))


def admit_with_pairs(
    policy: Policy, prompts: Sequence[Prompt], samplings: Sequence[Sampling | FlowSampling] = ()
) -> Admission:
    """The prompts that fit the policy's own sampling and these samplings, with both answers if they
    have two."""
    asked, dropped = policy.admit(prompts, samplings)
    _, long = admit_pairs(policy, [prompt for prompt in asked if prompt.is_pair])
    left_out = {prompt.id for prompt, _ in long}
    return [prompt for prompt in asked if prompt.id not in left_out], [*dropped, *long]


def admit_pairs(policy: Policy, pairs: Sequence[Prompt]) -> Admission:
    """The pairs whose two answers fit, and the others with the first reason."""
    reasons: dict[int, str] = {}
    for examples in zip(*(pair.sides for pair in pairs), strict=True):
        for pair, reason in policy.admit_answered(examples)[1]:
            reasons.setdefault(pair.id, reason)
    return split_refused(pairs, [reasons.get(pair.id) for pair in pairs])


def admit_mismatched(policy: Policy, pairs: Sequence[Prompt]) -> Admission:
    """Pairs in which every prompt fits with the answers of every other, and those left out.

    Any picture fits any prompt. For texts, the limits on the lengths of prompts and answers are
    chosen so that most pairs remain.
    """
    kept, dropped = admit_pairs(policy, pairs)
    if not isinstance(policy, TokenPolicy) or policy.positions is None or not kept:
        return kept, dropped
    asked = _lengths(policy.chat.encode(kept))
    said = [policy.chat.encode_answers([getattr(p, x) for p in kept], kept) for x in SIDES]
    said = torch.stack([_lengths(side) for side in said]).amax(0)
    most = longest_question(asked, said, policy.positions)
    fits = ((asked <= most) & (said <= policy.positions - most)).tolist()
    reason = (
        f"has {{}} tokens and up to {{}} in an answer: with every other prompt and answer, at most "
        f"{most} and {policy.positions - most} tokens fit"
    )
    rows = list(zip(kept, asked.tolist(), said.tolist(), fits, strict=True))
    return (
        [pair for pair, _, _, fit in rows if fit],
        [*dropped, *((pair, reason.format(q, a)) for pair, q, a, fit in rows if not fit)],
    )


def longest_question(asked: Tensor, said: Tensor, room: int) -> int:
    """The limit on question lengths that keeps most pairs; answers get the rest of `room`.

    Both are lengths, [N]; on ties, the smaller limit.
    """
    limits = asked.unique()
    kept = [int(((asked <= limit) & (said <= room - limit)).sum()) for limit in limits]
    return int(limits[kept.index(max(kept))])


def _lengths(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows])
