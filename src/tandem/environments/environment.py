"""The environment of a run: a world that is asked with care, and the limits of its episodes.

Whatever a world does costs its own episodes only: one that raises, hangs or gives what is no answer
has its episode begun once more with the same keys, and is lost after `attempts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from tandem.contracts import at_least, positive
from tandem.environments.beginning import Beginning
from tandem.environments.function import OfMoves
from tandem.environments.protocol import PROMPT_ROLES, ROLES, Episode, Move, Said, World
from tandem.rewards.concurrency import at_once, thread_like_this
from tandem.rewards.result import LARGEST, Missing, attempt, copy_of, told
from tandem.types import Prompt


@dataclass(slots=True)
class Play:
    """One episode of a row: who answers, what it said last, or why it is lost."""

    prompt: Prompt
    key: int  # of all that the world draws when it begins
    episode: Episode | None = None
    said: Said | None = None  # last
    lost: str | None = None  # why there is no episode any more
    attempts: int = 0
    counts: dict[str, float] = field(default_factory=dict)


class Environment:
    """A world and the limits of an episode in it.

    `max_turns` and `max_tokens` end an episode, which is then truncated; `max_tokens` counts what
    the world says too, and null is what the model holds. A message of more than
    `max_observation_tokens` loses its middle. A call of more than `timeout` seconds is given up;
    null asks in the thread that trains, and waits for ever. An episode is begun up to `attempts`
    times, and `at_once` calls are made at a time. `shared_noise` answers equal moves of a group
    alike.
    """

    def __init__(
        self,
        world: World | Callable[..., Said],
        *,
        max_turns: Annotated[int, positive] = 8,
        max_tokens: Annotated[int, positive] | None = 8192,
        max_observation_tokens: Annotated[int, at_least(8)] = 1024,
        timeout: Annotated[float, positive] | None = 30.0,
        attempts: Annotated[int, positive] = 2,
        at_once: Annotated[int, positive] = 64,
        shared_noise: bool = False,
    ) -> None:
        self.world = OfMoves(world) if callable(world) else world
        self.about = self.world.describe()
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.max_observation_tokens = max_observation_tokens
        self.timeout, self.attempts, self.at_once = timeout, attempts, at_once
        self.shared_noise = shared_noise
        self.seconds = 0.0  # in its calls since last popped
        if self.about.runs_code:
            raise ValueError(
                "environment: this world runs code of the policy, and there is no sandbox for it; "
                "choose one that asks a server, or whose tools are functions of yours"
            )
        slowest = self.about.slowest
        if None not in (timeout, slowest) and timeout < slowest:
            raise ValueError(
                f"environment.timeout={timeout:g}: a call of this world ends by limits of its own "
                f"after {slowest:g} s; set environment.timeout to at least that, or lower those"
            )

    @property
    def gives(self) -> frozenset[str]:
        """The fields of a rollout that come with episodes."""
        return frozenset({"turn", "feedback", *(["state"] if self.about.gives_states else [])})

    def begin(self, plays: Sequence[Play]) -> None:
        """Begin, or begin anew, until each has an opening or is lost."""
        waiting = list(plays)
        while waiting:
            for play in waiting:
                self.close([play])
                play.attempts += 1
                play.counts.clear()
            begun = [Beginning(self.world, copy_of(play.prompt), play.key) for play in waiting]
            answers = self._ask([(one,) for one in begun])
            # One that is given to two rows would answer for another's session.
            taken = [id(play.episode) for play in plays if play.episode is not None]
            for play, one, answer in zip(waiting, begun, answers, strict=True):
                if isinstance(answer, TimeoutError):  # it may hang in `close` as well
                    thread_like_this(one.let_go)
                self._opened(play, answer, taken)
            waiting = [play for play in waiting if self._may_try_again(play)]

    def act(self, plays: Sequence[Play], moves: Sequence[Move]) -> list[Play]:
        """Make a move in each; those that must begin anew come back."""
        calls = [(play.episode.act, move) for play, move in zip(plays, moves, strict=True)]
        for play, answer in zip(plays, self._ask(calls), strict=True):
            self._heard(play, answer)
        return [play for play in plays if self._may_try_again(play)]

    def close(self, plays: Sequence[Play]) -> None:
        """Let go of the episodes; what goes wrong then costs nothing."""
        open_ones = [play for play in plays if play.episode is not None]
        self._ask([(play.episode.close,) for play in open_ones])
        for play in open_ones:
            play.episode = None

    def pop_seconds(self) -> float:
        """Seconds of its calls since the last call of this."""
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

    def _opened(self, play: Play, answer: object, taken: list[int]) -> None:
        if isinstance(answer, BaseException):
            play.lost = reason_of("begin", answer, self.timeout)
            return
        episode, opening = answer
        if id(episode) in taken:
            play.lost = "begin gave an episode that is under way already"
            return
        taken.append(id(episode))
        play.episode, play.lost = episode, None
        self._heard(play, opening, "begin")

    def _heard(self, play: Play, answer: object, call: str = "act") -> None:
        if not isinstance(answer, BaseException):  # its parts may be code of theirs
            answer = attempt(checked, (answer, call, self._roles(call)))
        if isinstance(answer, BaseException):
            play.lost = reason_of(call, answer, self.timeout)
            if isinstance(answer, TimeoutError):  # it may hang in `close` as well
                thread_like_this(attempt, play.episode.close, ())
                play.episode = None
            return
        play.said = answer
        for name, number in answer.counts.items():
            play.counts[name] = play.counts.get(name, 0.0) + float(number)

    def _roles(self, call: str) -> Sequence[str]:
        is_prompt = call == "begin" and self.about.writes_prompt
        return PROMPT_ROLES if is_prompt else ROLES

    def _may_try_again(self, play: Play) -> bool:
        return play.lost is not None and play.attempts < self.attempts


def _call(function: Callable, *arguments: object) -> object:
    return function(*arguments)


def checked(said: Said, call: str, roles: Sequence[str]) -> Said:
    """An answer of a world, in records of ours. Raises Missing for what is none."""
    if (wrong := complaint(said, roles)) is not None:
        raise Missing(f"{call} {wrong}")
    if call == "begin" and (said.over or said.reward):
        raise Missing("begin gave an end or a reward, and no move was made")
    return replace(said, messages=tuple(map(dict, said.messages)), counts=dict(said.counts))


def complaint(said: object, roles: Sequence[str]) -> str | None:
    """What is wrong with an answer of a world; None: nothing."""
    if not isinstance(said, Said):
        return f"gave {type(said).__name__}, not Said"
    if not isinstance(said.over, bool):
        return f"gave over={said.over!r:.40}, neither True nor False"
    if said.state is not None and not _is_text(said.state):
        return f"gave a state of {type(said.state).__name__}, not of text"
    reward = said.reward
    if reward is not None and (isinstance(reward, bool) or not _is_number(reward)):
        return f"gave reward={reward!r:.40}, no finite number up to 1e18"
    if not all(isinstance(tool, Mapping) for tool in said.tools):
        return "gave tools that are no schemas"
    return _wrong_with_counts(said.counts) or _wrong_with_messages(said.messages, roles)


def _wrong_with_counts(counts: object) -> str | None:
    if not isinstance(counts, Mapping):
        return f"gave counts of {type(counts).__name__}, no mapping"
    if not all(isinstance(name, str) and _is_number(x) for name, x in counts.items()):
        return "gave counts that are no finite numbers by name"
    return None


def _wrong_with_messages(messages: object, roles: Sequence[str]) -> str | None:
    if not isinstance(messages, list | tuple):
        return f"gave messages of {type(messages).__name__}, no list"
    return next((wrong for message in messages if (wrong := _unfit(message, roles))), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST  # NaN is not


def _is_text(value: object) -> bool:
    """Whether it can be written: half of a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unfit(message: object, roles: Sequence[str]) -> str | None:
    if not isinstance(message, Mapping) or not _is_text(message.get("content")):
        return "gave a message that is no mapping of role and content, both texts"
    if message.get("role") not in roles:
        return f"spoke as {message.get('role')!r:.40}; a world is a user or a tool"
    return None


def reason_of(call: str, error: BaseException, seconds: float | None) -> str:
    """Why an episode is lost, in words."""
    if isinstance(error, TimeoutError) and not str(error) and seconds is not None:
        return f"{call} took over {seconds:g} s (environment.timeout)"
    return str(error) if isinstance(error, Missing) else f"{call} raised {told(error)}"
