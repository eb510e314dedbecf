"""The protocol of an environment: a world that begins episodes, and an episode that is acted in.

It sees prompts and texts, never tokens, and has four calls: `describe`, `begin`, `act` and `close`.
Each may block or sleep, since `Environment` runs them in threads if a timeout is set.
`@register_environment` above a class makes it `environment=NAME`. A plain function
`(prompt, moves) -> Said` works too, if its state follows from the moves so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.types import Picture, Prompt

Message = Mapping[str, str]  # role and content
ROLES = ("user", "tool")  # of a world's messages; "assistant" is the policy
PROMPT_ROLES = ("system", "user", "assistant", "tool")  # of an opening that replaces the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The properties of a world, known before it begins an episode."""

    gives_rewards: bool = True  # whether `Said.reward` may be a number
    # Subtracted from the rewards of moves for each call of a tool (`environment.world.cost`); above
    # 0 it is refused without a reward that sums them. None: calls cannot cost anything.
    cost: float | None = None
    gives_states: bool = False  # whether `Said.state` names the state before a move
    # Whether equal keys and moves get equal answers; if not, the run reports that it cannot repeat.
    repeats: bool = True
    runs_code: bool = False  # code of the policy: refused without a sandbox
    tools: Sequence[Mapping] = ()  # JSON schemas of the tools, for the chat template
    # The opening replaces the prompt and its pictures instead of following them.
    writes_prompt: bool = False
    # Seconds after which the world's own limits end a call cleanly: `environment.timeout` must not
    # be shorter. None: the world has no limits.
    slowest: float | None = None
    shows: bool = False  # pictures, which need a policy that sees
    # Given the texts of one and of two calls of `call_formats.PROBE`, as the chat template writes
    # them in any of the forms that it accepts, before sampling starts; raises ValueError if the
    # world cannot read calls like them. Not called without a template.
    learn_calls: Callable[[Iterable[tuple[str, str]]], None] = lambda written: None
    # Checks the requirements of the world once, before sampling starts; raises ValueError.
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The world's answer to a move, or its opening before the first move."""

    messages: Sequence[Message] = ()  # of a user or a tool; not read by the policy if `over`
    reward: float | None = None  # of the move just made; None: it has no reward of its own
    over: bool = False  # the episode has ended
    state: str | None = None  # before the next move; equal names are equal states
    counts: Mapping[str, float] = field(default_factory=dict)  # for metrics, summed by name
    # The calls that the world read in the move just made, in the form of a chat message: of a type
    # "function", and a function of a name and arguments. Rewards and records show them.
    tool_calls: Sequence[Mapping] = ()
    # Schemas of the tools, with an opening that replaces the prompt or with a new context.
    tools: Sequence[Mapping] = ()
    # The conversation that the messages belong to. If the opening replaces the prompt, a new number
    # begins a new conversation, and the policy reads only its messages.
    context: int = 0
    # One picture for each mark `<image>` in the messages, in their order.
    images: Sequence[Picture] = ()

    @classmethod
    def text(
        cls,
        content: str,
        *,
        reward: float | None = None,
        over: bool = False,
        state: str | None = None,
    ) -> Said:
        """One message of a user."""
        messages = ({"role": "user", "content": content},)
        return cls(messages=messages, reward=reward, over=over, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The move of the policy in its turn."""

    text: str  # without special tokens
    number: int  # of the turn, from 1
    key: int  # for all random draws of the world in its answer
    truncated: bool = False  # ended by the token limit, not by the policy
    read: int = 0  # tokens before it in the context
    written: int = 0  # tokens of the move


class Episode(Protocol):
    """One running episode; each call of `World.begin` returns a new one."""

    opening: Said  # before the first move; may be empty

    def act(self, move: Move) -> Said:
        """The world's answer. An exception counts as a fault of the world, not of the policy."""

    def close(self) -> None:
        """End the episode; also called if a limit or a fault ended it."""


class World(Protocol):
    """The object that an option of `environment` builds: cheap until an episode begins."""

    def describe(self) -> About: ...

    def begin(self, prompt: Prompt, key: int) -> Episode:
        """A new episode from a prompt. All random draws follow from the key, which the samples of a
        group share, so that they begin alike."""
