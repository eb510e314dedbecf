"""Episodes of a language policy, sampled in an environment or given as demonstrations.

`waves.py` drives them turn by turn. Another driver would fill the same `Course`s:
`Course.add_move`, `.add_answer` and `.begin_turn` are all that a driver calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from torch import Tensor

from tandem.environments import About, Environment
from tandem.policies.engines.protocol import Engine
from tandem.policies.language import message_frames, shown_episodes
from tandem.policies.language.bridge import Bridge
from tandem.policies.language.courses import Course, Limits, as_rollout
from tandem.policies.language.records import Questions, Sampling
from tandem.policies.language.waves import Wave
from tandem.progress import PROGRESS
from tandem.types import Admission, Prompt, Rollout

log = logging.getLogger(__name__)


class Episodes:
    """An environment, and the bridge of the policy's chat."""

    def __init__(self, environment: Environment, bridge: Bridge, positions: int | None) -> None:
        """positions: tokens that the model can read; None: unlimited. Raises ValueError for a chat
        template whose calls of tools the environment cannot read."""
        if bridge.has_template:
            environment.about.learn_calls(message_frames.write_calls(bridge))
        self.environment, self.bridge, self.positions = environment, bridge, positions
        self.limits = Limits(tokens=environment.max_tokens, positions=positions)
        for said in surprises(environment, bridge):
            log.warning(said)

    def play(self, asked: Questions, engine: Engine, *, about: About, key: int) -> Rollout:
        """One row per episode, `asked.keys.shape[1]` episodes per prompt, with the fields that the
        environment declares.

        The environment's noise is keyed by key and slot, so a group begins alike; in a turn, also
        by the sample and the number of the turn. The policy's noise is keyed by row and turn.
        """
        wave = Wave(self, asked, engine, key)
        try:
            wave.begin(wave.courses)
            PROGRESS.report()
            while on := [one for one in wave.courses if one.end is None]:
                wave.move(on)
                PROGRESS.report()
        finally:
            self.environment.close([one.play for one in wave.courses])
        return as_rollout(wave.courses, asked, about)

    def encode(self, examples: Sequence[Prompt], *, group: Tensor) -> Rollout:
        """Demonstrations: every token of their moves is trained. `group`: [B] int64."""
        return shown_episodes.encode(
            examples, bridge=self.bridge, group=group, positions=self.positions
        )

    def admit_answered(self, examples: Sequence[Prompt], limit: int | None) -> Admission:
        """Demonstrations that fit, and the others with a reason."""
        return shown_episodes.admit(
            examples, bridge=self.bridge, limit=limit, positions=self.positions
        )

    def most(self, sampling: Sampling) -> int | None:
        """Tokens that a prompt may have so that one move fits after it; None: unlimited."""
        limits = [sampling.max_prompt_tokens]
        if self.positions is not None:
            limits.append(self.positions - 1)
        return min((limit for limit in limits if limit is not None), default=None)

    def can_read(self, course: Course, count: int) -> bool:
        """Whether the model has positions for `count` tokens after the history."""
        return self.positions is None or len(course.history) + count <= self.positions


def surprises(environment: Environment, bridge: Bridge) -> Iterator[str]:
    """Warnings about episodes in this environment with this template."""
    if not environment.about.repeats:
        yield (
            "environment: this environment may answer equal moves differently (About.repeats is "
            "false), so a run with the same seed is not reproducible"
        )
    if bridge.rewrites:
        yield (
            "environment: the chat template drops the thinking of earlier turns, but histories "
            "keep it as it was sampled; a chat client would show the model less"
        )
