"""The environment of a run: a world with contained failures, and the limits of its episodes.

Failures of a world affect only its own episodes: after an exception, a timeout or an invalid answer
the episode is restarted with the same keys, and is lost after `attempts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tandem.contracts import at_least, positive
from tandem.environments.answers import check_answer, reason_of
from tandem.environments.beginning import Beginning
from tandem.environments.protocol import About, Episode, Move, Said, World
from tandem.rewards.concurrency import at_once
from tandem.rewards.result import attempt, copy_of
from tandem.threads import thread_like_this
from tandem.types import Prompt


@dataclass(slots=True)
class Play:
    """One episode of a row: its world, the last answer, or the reason why it is lost."""

    prompt: Prompt
    key: int  # for all draws of the world at the start
    episode: Episode | None = None
    said: Said | None = None  # last
    lost: str | None = None  # the reason why the episode is lost
    attempts: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    contexts: set[int] = field(default_factory=set)  # conversations that were begun


class Environment:
    """A world and the limits of an episode in it.

    `max_turns` and `max_tokens` truncate an episode; `max_tokens` includes messages of the world,
    and null is the model's limit. The middle of a message longer than `max_observation_tokens` is
    removed. A call of more than `timeout` seconds is given up; null calls in the training thread
    without a limit. An episode is begun up to `attempts` times, with `at_once` concurrent calls.
    `shared_noise` answers equal moves of a group alike.
    """

    def __init__(
        self,
        world: World | Callable[..., Said],  # what the policy acts in: it answers each move
        *,
        # Largest number of moves of an episode, which is then truncated.
        max_turns: Annotated[int, positive] = 8,
        # Largest number of tokens of an episode, with the world's messages; null: the model's.
        max_tokens: Annotated[int, positive] | None = 8192,
        # Largest number of tokens of a message; the middle of longer ones is removed.
        max_observation_tokens: Annotated[int, at_least(8)] = 1024,
        # Seconds of one call of the world; null: no limit, in the training thread.
        timeout: Annotated[float, positive] | None = 30.0,
        attempts: Annotated[int, positive] = 2,  # how often an episode is begun before it is lost
        at_once: Annotated[int, positive] = 64,  # largest number of concurrent calls of the world
        shared_noise: bool = False,  # true: the world answers equal moves of a group alike
    ) -> None:
        self.world = OfMoves(world) if callable(world) else world
        self.about = self.world.describe()
        if not isinstance(self.about, About):
            raise ValueError(
                f"environment: {type(self.world).__name__}.describe() returned a "
                f"{type(self.about).__name__}; return a tandem.environments.About"
            )
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.max_observation_tokens = max_observation_tokens
        self.timeout, self.attempts, self.at_once = timeout, attempts, at_once
        self.shared_noise = shared_noise
        self.seconds = 0.0  # in calls of the world since the last `pop_seconds`
        if self.about.runs_code:
            raise ValueError(
                "environment: this world runs code of the policy without a sandbox; "
                "use environment=python, a server, or tools of your own"
            )
        slowest = self.about.slowest
        if None not in (timeout, slowest) and timeout < slowest:
            raise ValueError(
                f"environment.timeout={timeout:g}: a call of this world has its own limits of "
                f"{slowest:g} s; set environment.timeout to at least that, or lower those"
            )

    @property
    def parts(self) -> dict[str | None, Environment]:
        """The environments by name, as in a mixture; here one plays all prompts."""
        return {None: self}

    def name_of(self, prompt: Prompt) -> None:
        """The name of a prompt's environment, as in a mixture; here None."""

    def most_tokens(self, of_move: int) -> int:
        """The most tokens after a prompt, given the most tokens of a move."""
        turns = self.max_turns * (of_move + self.max_observation_tokens)
        return turns if self.max_tokens is None else min(turns, self.max_tokens)

    @property
    def gives(self) -> frozenset[str]:
        """The fields that episodes add to a rollout."""
        return frozenset({"turn", "feedback", *(["state"] if self.about.gives_states else [])})

    def begin(self, plays: Sequence[Play]) -> None:
        """Begin, or retry, until each episode has an opening or is lost."""
        waiting = list(plays)
        while waiting:
            self.close(waiting)
            for play in waiting:
                play.attempts += 1
                play.counts.clear()
                play.contexts.clear()
            begun = [Beginning(self.world, copy_of(play.prompt), play.key) for play in waiting]
            answers = self._ask([(one,) for one in begun])
            # An episode shared by two rows would mix up their sessions.
            taken = [id(play.episode) for play in plays if play.episode is not None]
            for play, one, answer in zip(waiting, begun, answers, strict=True):
                if isinstance(answer, TimeoutError):  # it may hang in `close` as well
                    thread_like_this(one.let_go)
                self._open(play, answer, taken)
            waiting = [play for play in waiting if self._may_try_again(play)]

    def act(self, plays: Sequence[Play], moves: Sequence[Move]) -> list[Play]:
        """Make a move in each; returns the episodes that must begin again."""
        calls = [(play.episode.act, move) for play, move in zip(plays, moves, strict=True)]
        for play, answer in zip(plays, self._ask(calls), strict=True):
            self._hear(play, answer)
        return [play for play in plays if self._may_try_again(play)]

    def close(self, plays: Sequence[Play]) -> None:
        """Close the episodes; a failure then has no effect."""
        open_ones = [play for play in plays if play.episode is not None]
        self._ask([(play.episode.close,) for play in open_ones])
        for play in open_ones:
            play.episode = None

    def pop_seconds(self) -> float:
        """Seconds spent in the world's calls since the last time this was called."""
        spent, self.seconds = self.seconds, 0.0
        return spent

    def _ask(self, calls: Sequence[tuple]) -> list[object]:
        begun = time.perf_counter()
        if self.timeout is None:
            answers = [attempt(function, arguments) for function, *arguments in calls]
        else:
            answers = at_once(self.at_once, _call, calls, seconds=self.timeout)
        self.seconds += time.perf_counter() - begun
        return answers

    def _open(self, play: Play, answer: object, taken: list[int]) -> None:
        if isinstance(answer, BaseException):
            play.lost = reason_of("begin", answer, self.timeout)
            return
        episode, opening = answer
        if id(episode) in taken:
            play.lost = "begin gave an episode that is already running"
            return
        taken.append(id(episode))
        play.episode, play.lost = episode, None
        self._hear(play, opening, "begin")

    def _hear(self, play: Play, answer: object, call: str = "act") -> None:
        if not isinstance(answer, BaseException):  # a check may run code of the world
            answer = attempt(check_answer, (answer, call, self.about, play.contexts))
        if isinstance(answer, BaseException):
            play.lost = reason_of(call, answer, self.timeout)
            if isinstance(answer, TimeoutError):  # it may hang in `close` as well
                thread_like_this(attempt, play.episode.close, ())
                play.episode = None
            return
        play.said = answer
        play.contexts.add(answer.context)
        for name, number in answer.counts.items():
            play.counts[name] = play.counts.get(name, 0.0) + float(number)

    def _may_try_again(self, play: Play) -> bool:
        return play.lost is not None and play.attempts < self.attempts


def _call(function: Callable, *arguments: object) -> object:
    return function(*arguments)


class OfMoves:
    """A world whose answers are a function of the prompt and of all moves so far.

    Called without moves, it returns the opening.
    """

    def __init__(self, function: Callable[..., Said]) -> None:
        self.function = function

    def describe(self) -> About:
        return About(gives_states=True)

    def begin(self, prompt: Prompt, key: int) -> MovesSoFar:
        return MovesSoFar(self.function, prompt)


@dataclass(slots=True)
class MovesSoFar:
    """The prompt and the moves of one episode."""

    function: Callable[..., Said]  # (prompt, moves, *, numbers)
    prompt: Prompt
    moves: list[Move] = field(default_factory=list)

    @property
    def opening(self) -> Said:
        return self.function(self.prompt, ())

    def act(self, move: Move) -> Said:
        self.moves.append(move)
        return self.function(self.prompt, tuple(self.moves))

    def close(self) -> None:
        self.moves.clear()
