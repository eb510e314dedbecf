"""Rejected answers for pairs that have none: wrong answers sampled from a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from tandem import rng
from tandem.types import Prompt, Rollout


class Speaker(Protocol):
    """A policy that answers prompts."""

    sampling: Any  # its `max_rows` limits a batch

    def sample(
        self, prompts: Sequence[Prompt], group_size: int, *, key: int, slots: Sequence[int]
    ) -> Rollout: ...


def add_rejected(
    speaker: Speaker, prompts: Sequence[Prompt], *, tries: int, seed: int
) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts with their `answer` as chosen and the first wrong one of `tries` samples as
    rejected; and the prompts without a wrong answer.

    A sample depends only on seed, prompt and try. Truncated and empty samples do not count.
    """
    wrong: dict[int, str] = {}
    for turn in range(tries):
        left = [prompt for prompt in prompts if prompt.id not in wrong]
        key = rng.key(seed, "rejected", turn)
        size = speaker.sampling.max_rows
        for asked in (left[start : start + size] for start in range(0, len(left), size)):
            said = speaker.sample(asked, 1, key=key, slots=[prompt.id for prompt in asked])
            whole = zip(asked, said.outputs, said.truncated.tolist(), strict=True)
            wrong |= {p.id: o for p, o, cut in whole if not cut and o.strip() and o != p.answer}
    return (
        [replace(p, chosen=p.answer, rejected=wrong[p.id]) for p in prompts if p.id in wrong],
        [prompt for prompt in prompts if prompt.id not in wrong],
    )
