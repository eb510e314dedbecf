"""The protocol of an environment: a world that begins episodes, and an episode that is acted in.

It knows prompts and texts, and nothing of tokens. Four calls are all: `describe`, `begin`, `act`
and `close`. Each may block or sleep, since `Environment` asks them in threads where a timeout is
set.
`@register_environment` above a class makes it `environment=NAME`, as it does a plain function
`(prompt, moves) -> Said`, which is enough where all state is the moves so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.types import Picture, Prompt

Message = Mapping[str, str]  # role and content
ROLES = ("user", "tool")  # of what a world says; "assistant" is the policy's own
PROMPT_ROLES = ("system", "user", "assistant", "tool")  # of an opening in place of the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a world is, before it begins an episode."""

    gives_rewards: bool = True  # whether `Said.reward` may be a number
    gives_states: bool = False  # whether `Said.state` names the states that moves begin in
    # Whether equal keys and equal moves are answered alike; a run that cannot repeat says so.
    repeats: bool = True
    runs_code: bool = False  # of the policy: refused without a sandbox
    tools: Sequence[Mapping] = ()  # JSON schemas of what can be called, for the chat template
    # An opening stands in place of the prompt and of its pictures, and not behind it.
    writes_prompt: bool = False
    # Seconds that a call may take by limits of the world's own, which end it well: a timeout must
    # leave it so many. None: there are none.
    slowest: float | None = None
    shows: bool = False  # pictures: the policy must see
    # Tries what the world needs, once, before weights are sampled from; it raises ValueError.
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a world says before the first move, or to a move."""

    messages: Sequence[Message] = ()  # of a user or a tool; nothing that follows the end is read
    reward: float | None = None  # of the move that was made; None: it is worth nothing of its own
    over: bool = False  # nobody moves any more
    state: str | None = None  # in which the next move is begun; equal names are equal states
    counts: Mapping[str, float] = field(default_factory=dict)  # for metrics, added up by name
    # Schemas that an opening in place of the prompt comes with, or a context of its own.
    tools: Sequence[Mapping] = ()
    # The conversation that it is said in. Where an opening stands in place of the prompt, a number
    # that was not there yet begins another one, and its messages are all that the policy reads.
    context: int = 0
    # What its messages show, in the order of the marks `<image>` in them: one for each.
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
    """What the policy did in its turn."""

    text: str  # without special tokens
    number: int  # of the turn, from 1
    key: int  # of all that the world draws in answer to it
    truncated: bool = False  # the limit of tokens ended it, not the policy
    read: int = 0  # tokens that stood before it
    written: int = 0  # its own tokens


class Episode(Protocol):
    """One episode under way. A world that begins two gives two of these."""

    opening: Said  # what is said before the first move; may be empty

    def act(self, move: Move) -> Said:
        """The world's answer. What it raises is a fault of the world, and none of the policy."""

    def close(self) -> None:
        """Nobody moves any more; also called where a limit or a fault ended the episode."""


class World(Protocol):
    """What an option of `environment` makes: cheap to make, before anything is begun."""

    def describe(self) -> About: ...

    def begin(self, prompt: Prompt, key: int) -> Episode:
        """A new episode from a prompt. All that it draws is a function of the key, which is one for
        the samples of a group, so that they begin alike."""
