"""Courses: the growing tokens of one episode, those of the policy and of the environment.

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

WORLD = 0  # the turn number of the environment's tokens
BITS = 62  # of the hash of a state name, a positive number


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The tokens of one move."""

    tokens: Sequence[int]
    logp: Sequence[float]  # nats
    entropy: Sequence[float] | None  # nats; None: the engine does not report it
    truncated: bool

    def cut(self, room: int) -> Written:
        """The move, cut to at most `room` tokens."""
        if len(self.tokens) <= room:
            return self
        entropy = None if self.entropy is None else self.entropy[:room]
        return Written(
            tokens=self.tokens[:room], logp=self.logp[:room], entropy=entropy, truncated=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Token limits of an episode."""

    tokens: int | None = None  # after its prompt, over all contexts; None: unlimited
    positions: int | None = None  # of the model, per context; None: unlimited

    def left(self, tokens: int, history: int) -> int:
        """Tokens that fit after `tokens` of the episode and a history of that length."""
        own = sys.maxsize if self.tokens is None else self.tokens - tokens
        return own if self.positions is None else min(own, self.positions - history)


@dataclass(slots=True)
class Course:
    """One unfinished row. All lists are of its tokens after the prompt, in order."""

    row: int
    prompt: Prompt
    encoded: list[int]  # ids of the prompt and the opening
    limits: Limits
    play: Play
    tokens: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] | None = field(default_factory=list)
    feedback: list[float] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)  # the environment's numbers of contexts
    images: list[Picture] | None = None  # whose tokens it contains; None: text alone is read
    told: list[dict] = field(default_factory=list)  # the conversation, one entry per turn
    number: int = 1  # of the next turn
    text: str = ""  # of the last move
    cut: bool = False  # a token limit ended the last move
    end: str | None = None  # "over", "turn_limit", "token_limit" or "lost"; None: not ended

    def lose(self, why: str) -> None:
        """End the episode as lost."""
        self.play.lost, self.end = why, "lost"

    def open(self, *, in_place: bool) -> None:
        """Record the opening, which follows or replaces the prompt; if it replaces the prompt, the
        prompt's images are not shown."""
        if in_place and self.images is not None and self.play.said.messages:
            self.images = []
        self._hear(self.play.said)
        self._see(self.play.said)

    def add_move(self, written: Written, text: str) -> None:
        """Append the tokens of a move."""
        self._add(written.tokens, number=self.number, state=hash_state(self.play.said.state))
        self.logp += written.logp
        if written.entropy is None:
            self.entropy = None
        elif self.entropy is not None:
            self.entropy += written.entropy
        self.text, self.cut = text, written.truncated
        self.told.append({"role": "assistant", "content": text, "turn": self.number})

    def add_answer(self, said: Said) -> None:
        """Record the reward and the calls of the last move, and the observation."""
        if said.reward is not None:
            self.feedback[-1] = float(said.reward)
            self.told[-1]["reward"] = float(said.reward)
        if said.tool_calls:
            self.told[-1]["tool_calls"] = list(said.tool_calls)
        self._hear(said)

    def _hear(self, said: Said) -> None:
        """Record role and content of each message; other keys are ignored."""
        if said.context not in self.contexts:
            self.contexts.append(said.context)
        where = {"context": self.current_context} if self.current_context else {}
        self.told += [{n: one[n] for n in ("role", "content")} | where for one in said.messages]

    def _see(self, said: Said) -> None:
        if self.images is not None:
            self.images += said.images

    def begin_turn(self, ids: Sequence[int], max_turns: int) -> None:
        """Append the observation's tokens and begin the next turn, unless a limit is reached."""
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
        self.context += [self.current_context] * len(ids)

    @property
    def current_context(self) -> int:
        """The index of the context of the latest observation."""
        return self.contexts.index(self.play.said.context)

    @property
    def history(self) -> list[int]:
        """The ids that the policy reads before its next move."""
        here = self.current_context
        own = [one for one, place in zip(self.tokens, self.context, strict=True) if place == here]
        return own if here else [*self.encoded, *own]

    @property
    def history_images(self) -> list[Picture] | None:
        """The images whose tokens are in the history; only the first context has any."""
        return [] if self.images and self.current_context else self.images

    @property
    def left(self) -> int:
        """Tokens that may still be appended."""
        return self.limits.left(len(self.tokens), len(self.history))

    def transcript(self) -> dict:
        """The episode for judges, logs and displays, JSON-serialisable."""
        return {
            "turns": self.told,
            "end": self.end,
            "lost": self.play.lost,
            "attempts": self.play.attempts,
            "counts": self.play.counts,
        }


@lru_cache(4096)
def hash_state(state: str | None) -> int:
    """A hash of a state's name; 0: no name."""
    return 0 if state is None else 1 + (rng.key("state", state) >> 64 - BITS)


def as_rollout(courses: Sequence[Course], asked: Questions, about: About) -> Rollout:
    """One row per course, in order."""
    device = asked.group.device
    length = torch.tensor([len(one.tokens) for one in courses], device=device)
    padded = partial(right_padded, device=device, least=1)
    turn = padded([one.turn for one in courses])
    of_world = turn == WORLD
    known = has_entropy(courses, asked)
    tokens = padded([one.tokens for one in courses])
    encoded = [one.encoded for one in courses]
    sample = pack(encoded, tokens, length, asked.sampling.temperature or 1.0)
    if all(one.images is not None for one in courses):
        sample = replace(sample, images=tuple(tuple(one.images) for one in courses))
    if about.writes_prompt:  # other environments have one context
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


def has_entropy(courses: Sequence[Course], asked: Questions) -> bool:
    """Whether the engine reports the entropy of a draw. Rows without a move, all of them lost, do
    not show it, and those of other ranks, with which they are gathered, have the same fields."""
    if any(one.tokens for one in courses):
        return all(one.entropy is not None for one in courses)
    return asked.sampling.engine is None or asked.sampling.engine.reports_entropy
