"""Environments of a mixture: each dataset's samples are played in its own environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from tandem.environments.environment import Environment
from tandem.environments.protocol import About, Move, Said
from tandem.types import Prompt


class Mixture:
    """`of`: the environment of each dataset of data=mixture, by name; null is none, one answer.

    The source of a prompt begins with the name of its dataset.
    """

    def __init__(self, of: Mapping[str, Environment | None]) -> None:
        if not of:
            raise ValueError("environment.of names no dataset; use environment=none instead")
        self.parts = {name: one or one_answer_each() for name, one in of.items()}

    @cached_property
    def about(self) -> About:
        """The properties of all environments together; each keeps its own tools."""
        every = [one.about for one in self.parts.values()]
        return About(
            gives_rewards=any(one.gives_rewards for one in every),
            cost=max((one.cost for one in every if one.cost is not None), default=None),
            gives_states=any(one.gives_states for one in every),
            repeats=all(one.repeats for one in every),
            writes_prompt=any(one.writes_prompt for one in every),
            shows=any(one.shows for one in every),
        )

    @property
    def gives(self) -> frozenset[str]:
        """The fields that episodes add to a rollout."""
        return frozenset().union(*(one.gives for one in self.parts.values()))

    @property
    def max_turns(self) -> int:
        return max(one.max_turns for one in self.parts.values())

    def name_of(self, prompt: Prompt) -> str:
        """The name of the dataset of a prompt. Raises ValueError for one that is not there."""
        name = prompt.source.partition("/")[0]
        if name not in self.parts:
            raise ValueError(
                f"environment.of has no {name!r}, the dataset of a prompt; there are "
                f"{', '.join(self.parts)}"
            )
        return name

    def most_tokens(self, of_move: int) -> int:
        """The most tokens after a prompt, given the most tokens of a move."""
        return max(one.most_tokens(of_move) for one in self.parts.values())

    def pop_seconds(self) -> float:
        """Seconds spent in all worlds' calls since the last time this was called."""
        return sum(one.pop_seconds() for one in self.parts.values())


def one_answer_each() -> Environment:
    """No environment: the first move ends the episode and has no reward."""
    nobody = Environment(nothing_more, max_turns=1, max_tokens=None, timeout=None)
    nobody.about = replace(nobody.about, gives_rewards=False, gives_states=False)
    return nobody


def nothing_more(prompt: Prompt, moves: tuple[Move, ...]) -> Said:
    return Said(over=bool(moves))
