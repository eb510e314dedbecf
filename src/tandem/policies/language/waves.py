"""Waves of moves: one turn of every unfinished episode.

A wave requests the next move of each row from an engine, in row order; then the environment answers
all of them, and the next wave starts after the last answer. So latency never moves a row into
another batch. The first wave reads a prompt once per group, later ones read each history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem import rng
from tandem.environments import Move, Play, Said
from tandem.policies.engines.protocol import Engine
from tandem.policies.language.bridge import Unreadable
from tandem.policies.language.chat import fault
from tandem.policies.language.courses import Course, Written
from tandem.policies.language.records import Answers, Questions
from tandem.types import Prompt

if TYPE_CHECKING:
    from tandem.policies.language.episodes import Episodes


class Wave:
    """The rows of one call, played turn by turn."""

    def __init__(self, episodes: Episodes, asked: Questions, engine: Engine, key: int) -> None:
        self.environment, self.bridge = episodes.environment, episodes.bridge
        self.episodes, self.asked, self.engine = episodes, asked, engine
        self.samples = asked.keys.shape[1]
        self.keys = asked.keys.flatten()
        self.noise = rng.key(key, "environment", asked.group).tolist()  # key of each row
        self.openings: dict[tuple, list[int]] = {}  # ids, by prompt and opening
        self.courses = [self.course(row) for row in range(len(self.keys))]

    def course(self, row: int, play: Play | None = None) -> Course:
        """A row at its start."""
        place = row // self.samples
        prompt = self.asked.prompts[place]
        shown = self.bridge.chat.images([prompt])
        return Course(
            row=row,
            prompt=prompt,
            encoded=self.asked.encoded[place],
            limits=self.episodes.limits,
            play=Play(prompt, self.noise[row]) if play is None else play,
            images=None if shown is None else list(*shown),
        )

    def begin(self, courses: Sequence[Course]) -> None:
        """Begin or restart the episodes of these rows, with the same keys."""
        self.environment.begin([one.play for one in courses])
        for one in courses:
            fresh = self.course(one.row, one.play)
            if fresh.play.lost is None:
                self.open(fresh)
            else:
                fresh.end = "lost"
            self.courses[one.row] = fresh

    def open(self, course: Course) -> None:
        """Encode the opening, and check the room that it leaves."""
        if not self.environment.about.writes_prompt:
            self.shorten(course.play)
        try:
            course.encoded = self.opening_ids(course)
        except Unreadable as error:
            course.lose(str(error))
            return
        course.open(in_place=self.environment.about.writes_prompt)
        course.end = None if course.left > 0 else "token_limit"

    def opening_ids(self, course: Course) -> list[int]:
        """The ids of the prompt with the opening, which may replace it; encoded once, since the
        rows of a group mostly begin alike. Raises Unreadable.
        """
        said = course.play.said
        if not said.messages:
            return course.encoded
        place = course.row // self.samples
        pairs = ((one["role"], one["content"]) for one in said.messages)
        name = (place, str(said.tools), *pairs, *said.images)
        if name not in self.openings:
            self.openings[name] = self.encode_opening(course.prompt, said)
        return self.openings[name]

    def encode_opening(self, prompt: Prompt, said: Said) -> list[int]:
        """The ids of an opening. Raises Unreadable."""
        if not self.environment.about.writes_prompt:
            return self.bridge.opening_ids(prompt, said.messages, said.images)
        ids = self.bridge.prompt_of(said.messages, said.tools)
        if (wrong := fault(ids, self.episodes.most(self.asked.sampling))) is not None:
            raise Unreadable(f"the opening of the episode {wrong}")
        return ids

    def move(self, on: Sequence[Course]) -> None:
        """One move of each of these rows, and the environment's answers."""
        every = self.write(on)
        texts = self.bridge.chat.decode([written.tokens for written in every])
        for one, written, text in zip(on, every, texts, strict=True):
            one.add_move(written, text)
        moves = [
            Move(
                text=one.text,
                number=one.number,
                key=key,
                truncated=one.cut,
                read=len(one.history) - len(written.tokens),
                written=len(written.tokens),
            )
            for one, written, key in zip(on, every, self.keys_of(on), strict=True)
        ]
        again = self.environment.act([one.play for one in on], moves)
        for one in on:
            if one.play.lost is None:
                self.answer(one)
            else:
                one.end = "lost"
        anew = {id(play) for play in again}
        self.begin([one for one in on if id(one.play) in anew])

    def answer(self, course: Course) -> None:
        """Record the observation, and continue or end the episode."""
        is_whole = course.play.said.context not in course.contexts
        said = course.play.said if is_whole else self.shorten(course.play)
        course.add_answer(said)
        if said.over:
            course.end = "over"
            return
        if said.images and course.current_context:
            course.lose("the environment showed an image outside its first conversation")
            return
        try:
            if is_whole:
                ids = self.bridge.prompt_of(said.messages, said.tools)
            else:
                ids = self.bridge.turn_ids(said.messages, course.history, said.images)
        except Unreadable as error:
            course.lose(str(error))
        else:
            course.begin_turn(ids, self.environment.max_turns)

    def shorten(self, play: Play) -> Said:
        """The observation with each message shortened to its limit."""
        said = play.said.messages
        short = self.bridge.short(said, play.said.images)
        cut = sum(one != before for one, before in zip(short, said, strict=True))
        if cut and not play.said.over:
            play.counts["shortened"] = play.counts.get("shortened", 0.0) + cut
        play.said = replace(play.said, messages=short)
        return play.said

    def keys_of(self, courses: Sequence[Course]) -> list[int]:
        """Keys of the environment's noise in the current turn of each row."""
        begun = torch.tensor([one.play.key for one in courses])
        rows = torch.tensor([one.row for one in courses])
        samples = torch.zeros_like(rows) if self.environment.shared_noise else rows % self.samples
        turns = torch.tensor([one.number for one in courses])
        return rng.key(begun, "turn", samples, turns).tolist()

    def write(self, on: Sequence[Course]) -> list[Written]:
        """The moves of these rows. A row with less room is asked with the others and cut, if the
        model has enough positions after its history."""
        most = self.asked.sampling.max_new_tokens
        rooms = {one.row: min(most, one.left) for one in on}
        found: dict[int, Written] = {}
        while waiting := [one for one in on if one.row not in found]:
            room = max(rooms[one.row] for one in waiting)
            some = [one for one in waiting if self.episodes.can_read(one, room)]
            for one, written in zip(some, read(self.ask(some, room)), strict=True):
                found[one.row] = written.cut(rooms[one.row])
        return [found[one.row] for one in on]

    def ask(self, some: Sequence[Course], room: int) -> Answers:
        """The engine's answers for these rows, of at most `room` tokens."""
        prompts, keys = self.questions(some)
        sampling = self.asked.sampling
        if room != sampling.max_new_tokens:
            sampling = replace(sampling, max_new_tokens=room)
        return self.engine.answer(prompts, keys, sampling=sampling, endings=self.asked.endings)

    def questions(self, some: Sequence[Course]) -> tuple[list[list[int]], Tensor]:
        """Histories [N] and keys [N, 1]; or prompts [P] and keys [P, G] if all rows are at their
        start and the rows of each group begin alike."""
        groups = [some[i : i + self.samples] for i in range(0, len(some), self.samples)]
        alike = all(
            (one.encoded, one.images) == (group[0].encoded, group[0].images)
            for group in groups
            for one in group
        )
        if len(some) == len(self.courses) and alike and not any(one.tokens for one in some):
            return [group[0].encoded for group in groups], self.asked.keys
        rows = torch.tensor([one.row for one in some], device=self.keys.device)
        turns = torch.tensor([one.number for one in some], device=self.keys.device)
        later = rng.key(self.keys[rows], "turn", turns)
        keys = torch.where(turns == 1, self.keys[rows], later)
        read = self.bridge.chat.with_images
        return [read(one.history, one.history_images, one.encoded) for one in some], keys[:, None]


def read(answers: Answers) -> list[Written]:
    """The tokens of each row, up to its end."""
    lengths, truncated = answers.length.tolist(), answers.truncated.tolist()
    tokens, logp = answers.tokens.tolist(), answers.logp.tolist()
    entropy = None if answers.entropy is None else answers.entropy.tolist()
    return [
        Written(
            tokens=tokens[row][:length],
            logp=logp[row][:length],
            entropy=None if entropy is None else entropy[row][:length],
            truncated=truncated[row],
        )
        for row, length in enumerate(lengths)
    ]
