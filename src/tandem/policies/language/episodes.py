"""Episodes of a language policy: what it needs to act in an environment, and to be shown it.

`waves.py` drives them turn by turn. Whoever drives episodes at another pace fills the same
`Course`s: `Course.moved`, `.answered` and `.go_on` are all that a driver calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from torch import Tensor

from tandem.environments import About, Environment
from tandem.policies.engines.protocol import Engine
from tandem.policies.language import shown_episodes
from tandem.policies.language.bridge import Bridge
from tandem.policies.language.courses import Course, Limits, as_rollout
from tandem.policies.language.records import Questions, Sampling
from tandem.policies.language.waves import Wave
from tandem.types import Prompt, Rollout

log = logging.getLogger(__name__)


class Episodes:
    """What a policy needs to act in an environment: the world, and the bridge of its chat."""

    def __init__(self, environment: Environment, bridge: Bridge, positions: int | None) -> None:
        """positions: tokens that the model can read; None: there is no limit."""
        self.environment, self.bridge, self.positions = environment, bridge, positions
        self.limits = Limits(tokens=environment.max_tokens, positions=positions)
        for said in surprises(environment, bridge):
            log.warning(said)

    def play(self, asked: Questions, engine: Engine, *, about: About, key: int) -> Rollout:
        """A row of each episode, `asked.keys.shape[1]` of them to every prompt, with the fields of
        a world like this.

        The world draws by the key and the slot, so that a group begins alike, and in a turn by the
        sample and the number of the turn too. The policy draws a turn by the key of its row and the
        number of the turn.
        """
        wave = Wave(self, asked, engine, key)
        try:
            wave.begin(wave.courses)
            while on := [one for one in wave.courses if one.end is None]:
                wave.move(on)
        finally:
            self.environment.close([one.play for one in wave.courses])
        return as_rollout(wave.courses, asked, about)

    def encode(self, examples: Sequence[Prompt], *, group: Tensor) -> Rollout:
        """Demonstrations, of whose moves every token is trained. `group`: [B] int64."""
        return shown_episodes.encode(
            examples, bridge=self.bridge, group=group, positions=self.positions
        )

    def admit_answered(
        self, examples: Sequence[Prompt], limit: int | None
    ) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
        """The demonstrations that fit, and the others with the reason."""
        return shown_episodes.admit(
            examples, bridge=self.bridge, limit=limit, positions=self.positions
        )

    def most(self, sampling: Sampling) -> int | None:
        """Tokens that a prompt may have, and a move of one behind it; None: there is no limit."""
        limits = [sampling.max_prompt_tokens]
        if self.positions is not None:
            limits.append(self.positions - 1)
        return min((limit for limit in limits if limit is not None), default=None)

    def can_read(self, course: Course, count: int) -> bool:
        """Whether the model has positions for so many tokens behind a history."""
        return self.positions is None or len(course.history) + count <= self.positions


def surprises(environment: Environment, bridge: Bridge) -> Iterator[str]:
    """What a user would not expect of episodes in this world, by this template."""
    if not environment.about.repeats:
        yield (
            "environment: this world does not answer equal moves alike (About.repeats), so a run "
            "of the same seed is another one"
        )
    if bridge.rewrites:
        yield (
            "environment: the chat template leaves out the thinking of earlier turns, and a "
            "history keeps it as it was sampled; a chat client would show the model less"
        )
