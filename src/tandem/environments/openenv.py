"""A world on an OpenEnv server: one session per episode, JSON over a WebSocket."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import NoReturn

from tandem.contracts import declare, need_extra, register_environment
from tandem.contracts.bounds import values_of
from tandem.environments.protocol import About, Move, Said
from tandem.remote import Breaker, RemoteError, Session, SessionLimits, Sessions
from tandem.rewards.result import Missing
from tandem.types import Prompt

HERE = "environment.world"
RESET = "reset"  # the prompt field with its own arguments of `reset`
SEEDS = 2**31  # seeds below this suit every generator
SHOWN = 200  # characters of a server's error message
OURS = ("missing", "extra_forbidden")  # faults of an action's field names, not of its values


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The field for the text of a move, and the paths of the server's texts. A path leads through
    mappings and lists, such as `messages.-1.content`."""

    action: str | None = None  # action field for the text; None: a move is JSON
    observation: str | None = None  # path of the text; None: the whole observation, as JSON
    state: str | None = None  # path in the reply to `state`; None: no states


@register_environment("openenv")
@declare(judges_itself=True)
class OpenEnv:
    """An environment behind the WebSocket of an OpenEnv server (`reset`, `step`, `state`, `close`).

    Each episode has its own session; the addresses take turns. The server's `reset` receives a seed
    from the key, which the samples of a group share, then the arguments in `reset`, then those in
    the prompt's field "reset". `token_env` names the environment variable with the bearer token, if
    there is one.
    """

    def __init__(
        self,
        *,
        url: str | Sequence[str],
        token_env: str | None = None,
        fields: Fields | None = None,
        reset: Mapping[str, object] | None = None,
        limits: SessionLimits | None = None,  # seconds and bytes of a session
        breaker: Breaker | None = None,
    ) -> None:
        if find_spec("websockets") is None:
            raise ValueError(need_extra(f"url={url}", "openenv"))
        urls = values_of(url)
        if not urls:
            raise ValueError("url=[]: give the address of a server, or a list of addresses")
        breaker = breaker or Breaker()
        self.servers = [
            Sessions(
                one,
                where=HERE,
                token_env=token_env,
                limits=limits,
                breaker=Breaker(failures=breaker.failures, pause=breaker.pause),
            )
            for one in urls
        ]
        self.next_server = itertools.cycle(self.servers).__next__
        self.fields, self.reset = fields or Fields(), dict(reset or {})

    def describe(self) -> About:
        return About(gives_states=self.fields.state is not None, repeats=False)

    def begin(self, prompt: Prompt, key: int) -> RemoteEpisode:
        asked = {"seed": key % SEEDS, "episode_id": uuid.uuid4().hex}
        own = prompt.fields.get(RESET)
        asked |= {**self.reset, **({} if own is None else own)}
        try:
            session = self.next_server().open("/ws")
        except RemoteError as error:
            raise Missing(str(error)) from None
        episode = RemoteEpisode(session, self.fields)
        try:
            episode.begin(asked)
        except Missing:
            episode.close()
            raise
        return episode


@dataclass(slots=True)
class RemoteEpisode:
    """One session, and the name that the server gave its episode."""

    session: Session
    fields: Fields
    name: object = None
    state: str | None = None  # before the next move
    opening: Said = field(default_factory=Said)

    def begin(self, asked: Mapping[str, object]) -> None:
        """Reset the episode on the server."""
        data, state = self._step({"type": "reset", "data": asked})
        self.name = state.get("episode_id")
        if data.get("done"):
            self._fail("reset gave an episode that is already over")
        self.opening = replace(self._parse_reply(data, state), reward=None)  # it belongs to no move

    def act(self, move: Move) -> Said:
        try:
            data, state = self._step({"type": "step", "data": self._action(move.text)})
        except InvalidActionError as error:
            return self._mistaken(str(error))
        if state.get("episode_id") != self.name:
            self._fail("step answered for another session: episode_id has changed")
        return self._parse_reply(data, state)

    def close(self) -> None:
        self.session.close({"type": "close"})

    def _action(self, text: str) -> Mapping[str, object]:
        """The action in a text. Raises InvalidActionError if there is none."""
        if self.fields.action is not None:
            return {self.fields.action: text}
        try:
            action = json.loads(text)
        except (ValueError, RecursionError):
            action = None
        if not isinstance(action, dict):
            raise InvalidActionError("The action is not a JSON object.")
        return action

    def _step(self, message: Mapping[str, object]) -> tuple[Mapping, Mapping]:
        """The data of the reply, and of the state after it, which reveals servers that share one
        environment among their sessions."""
        return self._ask(message, "observation"), self._ask({"type": "state"}, "state")

    def _ask(self, message: Mapping[str, object], kind: str) -> Mapping:
        try:
            answer = self.session.ask(message)
        except RemoteError as error:
            raise Missing(str(error)) from None
        data = answer.get("data")
        if not isinstance(data, dict):
            self._fail(f"{kind} has no data")
        if answer.get("type") == "error":
            self._raise(data)
        if answer.get("type") != kind:
            self._fail(f"expected {kind!r}, got {str(answer.get('type'))[:SHOWN]!r}")
        return data

    def _raise(self, data: Mapping) -> NoReturn:
        code, why = data.get("code"), str(data.get("message"))[:SHOWN]
        if code == "VALIDATION_ERROR":
            faults = [one for one in data.get("errors") or () if isinstance(one, dict)]
            why = "; ".join(f"{path_of(one.get('loc'))}: {one.get('msg')}" for one in faults)[
                :SHOWN
            ]
            if self.fields.action is None or not any(one.get("type") in OURS for one in faults):
                raise InvalidActionError(f"The action is not valid: {why}")
            why = f"{why}; see {HERE}.fields.action"
        if code == "CAPACITY_REACHED":
            why = f"{why}; each row of a rollout is a session: raise max_concurrent_envs of the "
            why += f"server, or give more servers as {HERE}.url"
        self._fail(f"the server says {code}: {why}")

    def _parse_reply(self, data: Mapping, state: Mapping) -> Said:
        seen, reward = data.get("observation"), data.get("reward")
        text = self._read(seen, self.fields.observation, "observation")
        if self.fields.state is not None:
            self.state = self._read(state, self.fields.state, "state")
        return Said(
            messages=({"role": "user", "content": text},) if text else (),
            reward=float(reward) if isinstance(reward, bool) else reward,
            over=data.get("done", False),
            state=self.state,
        )

    def _mistaken(self, why: str) -> Said:
        """The answer to an invalid action: the policy may correct it in its next turn."""
        messages = ({"role": "user", "content": why},)
        return Said(messages=messages, state=self.state, counts={"tool_errors": 1})

    def _read(self, found: object, way: str | None, key: str) -> str:
        """The value at a path as text: JSON unless it is a string."""
        for step in () if way is None else way.split("."):
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (LookupError, TypeError, ValueError):
                self._fail(f"{key} has no {way}; see {HERE}.fields.{key}")
        if found is None or isinstance(found, str):
            return found or ""
        return json.dumps(found, ensure_ascii=False, sort_keys=True)

    def _fail(self, why: str) -> NoReturn:
        raise Missing(f"{self.session.place.url}: {why}")


class InvalidActionError(Missing):
    """A fault of the policy's action, worded for the policy."""


def path_of(place: object) -> str:
    """The path to a fault in an action."""
    return ".".join(map(str, place)) if isinstance(place, list) else str(place)
