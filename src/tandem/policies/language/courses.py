"""The course of one episode: its tokens, those of the policy and those of the world, as they come.

Courses become the rows of a rollout, whose mask is True on tokens of the policy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch

from tandem import rng
from tandem.environments import About, Play, Said
from tandem.policies.language.records import Questions
from tandem.policies.language.sampling import pack, right_padded
from tandem.types import Picture, Prompt, Rollout

WORLD = 0  # the number of the turn that tokens of the world have
BITS = 62  # of the name of a state: a positive number


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an engine wrote in one turn."""

    tokens: Sequence[int]
    logp: Sequence[float]  # nats
    entropy: Sequence[float] | None  # nats; None: the engine did not say
    truncated: bool

    def cut(self, room: int) -> Written:
        """As it would be, had there been room for so many tokens."""
        if len(self.tokens) <= room:
            return self
        entropy = None if self.entropy is None else self.entropy[:room]
        return Written(
            tokens=self.tokens[:room], logp=self.logp[:room], entropy=entropy, truncated=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many tokens an episode may have."""

    tokens: int | None = None  # behind its prompt, of all contexts; None: there is no limit
    positions: int | None = None  # that the model can read, of one context; None: as many as come

    def left(self, tokens: int, history: int) -> int:
        """Tokens that fit behind so many of the episode, and behind such a history."""
        own = sys.maxsize if self.tokens is None else self.tokens - tokens
        return own if self.positions is None else min(own, self.positions - history)


@dataclass(slots=True)
class Course:
    """One row under way. All lists are of its tokens behind the prompt, in their order."""

    row: int
    prompt: Prompt
    encoded: list[int]  # ids of the prompt and of the world's opening
    limits: Limits
    play: Play
    tokens: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] | None = field(default_factory=list)
    feedback: list[float] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)  # the world's numbers of them
    images: list[Picture] | None = None  # whose tokens stand in it; None: texts alone are read
    told: list[dict] = field(default_factory=list)  # the conversation, a line of each turn
    number: int = 1  # of the turn that is next
    text: str = ""  # of the last move
    cut: bool = False  # the last move was ended by a limit of tokens
    end: str | None = None  # "over", "turn_limit", "token_limit" or "lost"; None: it goes on

    def lose(self, why: str) -> None:
        """There is no episode any more."""
        self.play.lost, self.end = why, "lost"

    def open(self, *, in_place: bool) -> None:
        """Write down what the world said before the first move, behind or in place of the prompt,
        whose pictures are then not shown."""
        if in_place and self.images is not None and self.play.said.messages:
            self.images = []
        self._hear(self.play.said)
        self._see(self.play.said)

    def moved(self, written: Written, text: str) -> None:
        """The tokens of a move."""
        self._add(written.tokens, number=self.number, state=hashed(self.play.said.state))
        self.logp += written.logp
        if written.entropy is None:
            self.entropy = None
        elif self.entropy is not None:
            self.entropy += written.entropy
        self.text, self.cut = text, written.truncated
        self.told.append({"role": "assistant", "content": text, "turn": self.number})

    def answered(self, said: Said) -> None:
        """What the world gave for the last move, and said to it."""
        if said.reward is not None:
            self.feedback[-1] = float(said.reward)
            self.told[-1]["reward"] = float(said.reward)
        self._hear(said)

    def _hear(self, said: Said) -> None:
        """Of a message the role and the content: what else it has is no word of ours."""
        if said.context not in self.contexts:
            self.contexts.append(said.context)
        where = {"context": self.here} if self.here else {}
        self.told += [{n: one[n] for n in ("role", "content")} | where for one in said.messages]

    def _see(self, said: Said) -> None:
        if self.images is not None:
            self.images += said.images

    def go_on(self, ids: Sequence[int], max_turns: int) -> None:
        """The next turn begins behind these tokens of the world, if a limit does not forbid it."""
        if self.number >= max_turns:
            self.end = "turn_limit"
        elif len(ids) >= self.left:
            self.end = "token_limit"
        else:
            self._add(ids, number=WORLD, state=0)
            self._see(self.play.said)
            self.logp += [0.0] * len(ids)
            if self.entropy is not None:
                self.entropy += [0.0] * len(ids)
            self.number += 1

    def _add(self, ids: Sequence[int], *, number: int, state: int) -> None:
        self.tokens += ids
        self.turn += [number] * len(ids)
        self.feedback += [0.0] * len(ids)
        self.state += [state] * len(ids)
        self.context += [self.here] * len(ids)

    @property
    def here(self) -> int:
        """The place of the context that the world spoke in last."""
        return self.contexts.index(self.play.said.context)

    @property
    def history(self) -> list[int]:
        """The ids that the policy reads before its next move."""
        here = self.here
        own = [one for one, place in zip(self.tokens, self.context, strict=True) if place == here]
        return own if here else [*self.encoded, *own]

    @property
    def shown(self) -> list[Picture] | None:
        """The pictures whose tokens stand in the history: only the first context has any."""
        return [] if self.images and self.here else self.images

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        return self.limits.left(len(self.tokens), len(self.history))

    def transcript(self) -> dict:
        """The episode for judges, records and people; JSON can hold it."""
        return {
            "turns": self.told,
            "end": self.end,
            "lost": self.play.lost,
            "attempts": self.play.attempts,
            "counts": self.play.counts,
        }


@lru_cache(4096)
def hashed(state: str | None) -> int:
    """The number of a state's name; 0: it has none."""
    return 0 if state is None else 1 + (rng.key("state", state) >> 64 - BITS)


def as_rollout(courses: Sequence[Course], asked: Questions, about: About) -> Rollout:
    """One row of each course, in their order."""
    device = asked.group.device
    length = torch.tensor([len(one.tokens) for one in courses], device=device)
    padded = partial(right_padded, device=device, least=1)
    turn = padded([one.turn for one in courses])
    of_world = turn == WORLD
    known = all(one.entropy is not None for one in courses)
    tokens = padded([one.tokens for one in courses])
    encoded = [one.encoded for one in courses]
    sample = pack(encoded, tokens, length, asked.sampling.temperature or 1.0)
    if all(one.images is not None for one in courses):
        sample = replace(sample, images=tuple(tuple(one.images) for one in courses))
    if about.writes_prompt:  # others have one context
        sample = replace(sample, context=padded([one.context for one in courses]))
    return Rollout(
        sample=sample,
        outputs=tuple(one.text for one in courses),
        prompts=tuple(replace(one.prompt, episode=one.transcript()) for one in courses),
        mask=~of_world,
        group=asked.group,
        length=length,
        truncated=torch.tensor(
            [one.end in ("turn_limit", "token_limit") or one.cut for one in courses], device=device
        ),
        key=asked.keys.flatten(),
        behaviour_logp=padded([one.logp for one in courses], dtype=torch.float32),
        entropy=padded([one.entropy for one in courses], dtype=torch.float32) if known else None,
        turn=turn,
        feedback=padded([one.feedback for one in courses], dtype=torch.float32),
        state=padded([one.state for one in courses]) if about.gives_states else None,
    )
