"""Episodes by data set: each is played in its own environment, and rows keep their slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.environments import Environment, Mixture
from tandem.policies.engines.protocol import Engine
from tandem.policies.language.bridge import Bridge
from tandem.policies.language.chat import Chat
from tandem.policies.language.episodes import Episodes
from tandem.policies.language.records import Questions
from tandem.types import Admission, Prompt, Rollout, concat, take

Ask = Callable[[Sequence[Prompt], Sequence[int]], Questions]  # (prompts, their slots)


class MixedEpisodes:
    """Episodes of all environments of a run; most runs have one.

    Data sets are played one after another in separate waves, so an environment's replies never
    move rows of another one.
    """

    def __init__(
        self,
        environment: Environment | Mixture,
        chat: Chat,
        ends: Sequence[int],
        positions: int | None,
    ) -> None:
        """positions: tokens that the model can read; None: unlimited."""
        self.environment = environment
        for part in environment.parts.values():
            part.about.check()
        chat.tools_of = lambda prompt: environment.parts[environment.name_of(prompt)].about.tools
        self.of = {
            name: Episodes(
                part,
                Bridge(chat, ends, limit=part.max_observation_tokens, tools=part.about.tools),
                positions,
            )
            for name, part in environment.parts.items()
        }

    def play(
        self, prompts: Sequence[Prompt], slots: Sequence[int], ask: Ask, engine: Engine, *, key: int
    ) -> Rollout:
        """The rows of all prompts, in order."""
        parts, rows = [], []
        for name, places in self.places(prompts).items():
            asked = ask([prompts[i] for i in places], [slots[i] for i in places])
            played = self.of[name].play(asked, engine, about=self.environment.about, key=key)
            parts.append(with_environment(played, name))
            samples = asked.keys.shape[1]
            rows += [place * samples + sample for place in places for sample in range(samples)]
        return in_order(parts, rows)

    def encode(self, examples: Sequence[Prompt], *, group: Tensor) -> Rollout:
        """Demonstrations: every token of their moves is trained. `group`: [B] int64."""
        parts, rows = [], []
        for name, places in self.places(examples).items():
            own = [examples[i] for i in places]
            parts.append(self.of[name].encode(own, group=group[torch.tensor(places)]))
            rows += places
        return in_order(parts, rows)

    def admit_answered(self, examples: Sequence[Prompt], limit: int | None) -> Admission:
        """Demonstrations that fit, and the others with a reason."""
        kept: list[Prompt] = []
        dropped: list[tuple[Prompt, str]] = []
        for name, places in self.places(examples).items():
            own = self.of[name].admit_answered([examples[i] for i in places], limit)
            kept += own[0]
            dropped += own[1]
        place = {prompt.id: i for i, prompt in enumerate(examples)}
        return sorted(kept, key=lambda prompt: place[prompt.id]), dropped

    def places(self, prompts: Sequence[Prompt]) -> dict[str | None, list[int]]:
        """Indices of the prompts of each environment."""
        found: dict[str | None, list[int]] = {}
        for place, prompt in enumerate(prompts):
            found.setdefault(self.environment.name_of(prompt), []).append(place)
        return found


def with_environment(rows: Rollout, name: str | None) -> Rollout:
    """Each episode with the name of its environment; None: there is only one."""
    if name is None:
        return rows
    prompts = (replace(one, episode={**one.episode, "environment": name}) for one in rows.prompts)
    return replace(rows, prompts=tuple(prompts))


def in_order(parts: Sequence[Rollout], rows: Sequence[int]) -> Rollout:
    """All rows, put back in their order."""
    if len(parts) == 1:
        return parts[0]
    return take(concat(parts), torch.tensor(rows).argsort())
