"""The world of an external agent: a program with its own loop that calls the policy for turns.

The program is started for every episode. It calls an OpenAI-compatible endpoint of this machine,
and each call is a turn: the messages since the last turn are the world's answer. Training uses the
sampled tokens; text that the program sends back is never re-encoded in their place.
"""

from __future__ import annotations

import errno
import json
import os
import queue
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tandem.contracts import declare, positive, register_environment
from tandem.data.images import fields_without_files
from tandem.environments.agent_endpoint import MODEL, Endpoint, Session
from tandem.environments.call_formats import UNKNOWN, given_format, recognise
from tandem.environments.chat_api import (
    Request,
    Turn,
    completion,
    continuation,
    move_of,
    retold,
)
from tandem.environments.program import FILES, GRACE, Ended, Janitor, Program
from tandem.environments.protocol import About, Move, Said
from tandem.rewards.result import LARGEST, Late, Missing
from tandem.types import Prompt

HERE = "environment.world"
# Environment variables that any program needs; the trainer's others may be secrets.
PLAIN = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER")
SEEDS = 2**31  # limit of common generators
SHOWN = 200  # characters shown of a program's error output
OVER = "the episode is over"


@register_environment("agent")
@declare(judges_itself=True)
class Agent:
    """A program that is started for every episode, without a shell.

    It reads the prompt from stdin as JSON. Its environment has OPENAI_BASE_URL, OPENAI_API_KEY,
    OPENAI_MODEL, the variables named by `keep_env`, and of the trainer's others only paths.
    `patience` is the time to its next call or its end. With `pays` it also gets the answer, and the
    last line that it prints is JSON with its "reward". A call that continues none of its
    conversations begins a new one: it rewrote its history, or uses a sub-agent. `repeats` declares
    that it acts alike for equal seeds and answers. `calls`: of tools, as in `environment=tools`.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        keep_env: Sequence[str] = (),
        patience: Annotated[float, positive] = 60.0,
        pays: bool = False,
        repeats: bool = False,
        calls: str | None = None,
        max_request_bytes: Annotated[int, positive] = 8 << 20,
    ) -> None:
        if not command:
            raise ValueError("command=[]: give the words of a command: [python, agent.py]")
        self.command, self.keep_env = [str(word) for word in command], tuple(keep_env)
        self.patience, self.pays = patience, pays
        self.repeats, self.calls = repeats, calls
        self.format = given_format(calls, None, {})
        self.endpoint = Endpoint(max_request_bytes=max_request_bytes)
        self.janitor = Janitor()

    def describe(self) -> About:
        slowest = self.patience + 2 * GRACE
        return About(
            writes_prompt=True, repeats=self.repeats, slowest=slowest, gives_rewards=self.pays,
            learn_calls=self.learn_calls,
        )  # fmt: skip

    def learn_calls(self, written: Iterable[tuple[str, str]]) -> None:
        """Read calls as the chat template writes them, unless a pattern was given."""
        self.format = recognise(written) if self.calls is None else self.format

    def begin(self, prompt: Prompt, key: int) -> AgentEpisode:
        """A program that has made its first call. Raises Missing if it makes none."""
        given = self.program_input(prompt, key % SEEDS)
        session = self.endpoint.open()
        try:
            program = Program(
                self.command,
                given=given,
                environment=self.variables(session, key % SEEDS),
                janitor=self.janitor,
                ended=session.events.put,
            )
        except Exception as error:  # no such file, no memory, or no thread to watch it
            self.endpoint.close(session, OVER)
            raise Missing(reason_of(error)) from None
        episode = AgentEpisode(self, session, program)
        episode.begin()
        return episode

    def program_input(self, prompt: Prompt, seed: int) -> bytes:
        """The input of the program: the prompt, and the answer only if it judges. Raises Missing
        for fields that JSON cannot hold."""
        told = {
            "prompt": prompt.text,
            "messages": prompt.messages and [dict(one) for one in prompt.messages],
            "fields": fields_without_files(prompt),
            "seed": seed,
        }
        if self.pays:
            told["answer"] = prompt.answer
        try:
            return json.dumps(told).encode()
        except (TypeError, ValueError) as error:
            raise Missing(f"the fields of the prompt are not JSON: {error}") from None

    def variables(self, session: Session, seed: int) -> dict[str, str]:
        """The environment of the program."""
        own = {name: os.environ[name] for name in (*PLAIN, *self.keep_env) if name in os.environ}
        return own | {
            "OPENAI_BASE_URL": session.url,
            "OPENAI_API_KEY": session.token,
            "OPENAI_MODEL": MODEL,
            "PYTHONHASHSEED": str(seed),
        }

    def reward_of(self, printed: str) -> float | None:
        """The reward reported by a program that judges. Raises Missing."""
        if not self.pays:
            return None
        line = printed.rpartition("\n")[2]
        try:
            reward = json.loads(line)["reward"]
        except (ValueError, TypeError, KeyError, RecursionError):
            reward = None
        if type(reward) not in (int, float):
            said = '{"reward": number}'
            raise Missing(f"the last line that the agent printed is not {said} ({HERE}.pays)")
        if not abs(reward) <= LARGEST:
            raise Missing("the agent gave a reward that is not finite or over 1e18")
        return float(reward)


def reason_of(error: Exception) -> str:
    """The reason why a program cannot be started, and what to change."""
    match error:
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return (
                f"no file descriptors are left, but a program needs {FILES}: raise `ulimit -n`, or "
                "lower prompts_per_step"
            )
    return f"{HERE}.command: {error}"


@dataclass(slots=True)
class Conversation:
    """A sequence of turns for the policy, with the tools shown to it."""

    tools: tuple[Mapping, ...]
    turns: list[Turn]

    def new_turns(self, request: Request) -> Sequence[Turn] | None:
        """The messages of a call after this conversation; None: it does not continue it."""
        if request.tools != self.tools:
            return None
        return continuation(self.turns, request.turns)


class AgentEpisode:
    """The conversations of a program with the policy."""

    def __init__(self, world: Agent, session: Session, program: Program) -> None:
        self.world, self.session, self.program = world, session, program
        self.conversations: list[Conversation] = []
        self.moves: list[Turn] = []
        self.request = Request(turns=())
        self.here = 0  # the conversation of the last call
        self.opening = Said()

    def begin(self) -> None:
        """Wait for the first call, whose messages are the prompt. Raises Missing."""
        event = self._next()
        if isinstance(event, Ended):
            self._check_end(event)
            raise self._fail("the agent ended before its first call")
        self.opening = self._hear(event)

    def act(self, move: Move) -> Said:
        """Answer the waiting call; the next call holds the world's answer."""
        tools = self.request.tools
        if tools and self.world.format is None:
            raise self._fail(f"the agent sent tools, but {UNKNOWN}")
        turn = move_of(move.text, self.world.format if tools else None, tools)
        self.moves.append(turn)
        self.conversations[self.here].turns.append(turn)
        self.session.answer(completion(turn, move, self.request.model))
        event = self._next()
        if isinstance(event, Ended):
            self._check_end(event)
            if not self.session.last.is_heard:
                raise self._fail("the agent ended without waiting for its last turn")
            return Said(over=True, reward=self.world.reward_of(event.printed))
        return self._hear(event)

    def close(self) -> None:
        self.world.endpoint.close(self.session, OVER)
        self.program.stop()

    def _hear(self, request: Request) -> Said:
        """The new messages of a call that continues a conversation; else all of its messages."""
        self.request = request
        for place in reversed(range(len(self.conversations))):
            if (new := self.conversations[place].new_turns(request)) is not None:
                self.here, self.conversations[place].turns = place, list(request.turns)
                return Said(messages=[one.message for one in new], context=place)
        return self._begin_conversation(request)

    def _begin_conversation(self, request: Request) -> Said:
        """The messages of a new conversation."""
        self.here = len(self.conversations)
        self.conversations.append(Conversation(request.tools, list(request.turns)))
        try:
            messages = retold(request.turns, self.moves)
        except ValueError as error:
            raise self._fail(f"the agent {error}") from None
        counts = {"contexts": 1.0} if self.here else {}
        return Said(messages=messages, tools=request.tools, context=self.here, counts=counts)

    def _next(self) -> Request | Ended:
        try:
            return self.session.events.get(timeout=self.world.patience)
        except queue.Empty:
            self.close()
            seconds = self.world.patience
            raise Late(f"the agent made no call within {seconds:g} s ({HERE}.patience)") from None

    def _check_end(self, end: Ended) -> None:
        if end.code != 0:
            said = end.complained.rpartition("\n")[2][-SHOWN:]
            raise self._fail(f"the agent ended with code {end.code}: {said}")

    def _fail(self, why: str) -> Missing:
        """End the program, and return the reason why its episode is lost."""
        self.close()
        return Missing(why)
