"""Engines of pictures: whoever makes them out of noise for a flow policy.

An engine with a copy of the weights subclasses `PictureEngine` and writes `sync` and `generate`.
`@register_rollout_engine("name")` above the class makes it `rollout=name`, as for tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from torch import Tensor

from tandem.policies.engines.protocol import EngineOption, WeightHolder
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import LIVE, SamplerOutput
from tandem.policies.flow.sampling import LocalPictures, SamplingPlan
from tandem.types import Prompt

if TYPE_CHECKING:
    from tandem.policies.flow.adapter import Adapter
    from tandem.policies.flow.embeddings import PromptEmbeddingCache
    from tandem.policies.weights import Precision


class Generator(Protocol):
    """All that a flow policy wants of whoever makes its pictures."""

    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """Latents with the steps in `plan.kept`, and pictures: uint8 [B, H, W, 3].

        One row for each prompt. keys, starts: [B] int64, of the noise of the steps, and of what
        they start from; an engine that draws its own takes them for seeds.
        """


class Painting(Protocol):
    """What an engine may want to know of the flow policy that it makes pictures for."""

    adapter: Adapter  # of its family: reads and decodes latents, loads weights
    library: PromptEmbeddingCache
    precision: Precision


class PictureOption(EngineOption):
    """What `rollout.engine` makes for a flow. It is a `Generator`'s settings, or one itself."""

    samples: ClassVar[Literal["tokens", "flow"]] = "flow"

    @abstractmethod
    def host(self, policy: Painting) -> Generator:
        """The engine of a policy whose weights are there: a PictureEngine, but where it shares
        them."""


class PictureEngine(WeightHolder, PictureOption):
    """An engine that holds a copy of the weights: `sync` and `generate` are enough.

    `sync` is given the live weights in the layout of diffusers, adapters merged.
    """

    samples = "flow"

    def host(self, policy: Painting) -> Generator:
        return self

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """As any generator does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFiles:
    """The weights of a flow on their way to an engine."""

    model: FlowModel
    adapter = False
    is_sharded = False

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def copied(self) -> FlowFiles:
        """What cannot be saved later has to be saved now: nobody samples pictures ahead."""
        raise NotImplementedError("engines of pictures are handed the weights as they are")


class SyncedPictures:
    """An engine with a copy of the live weights; snapshots, which it does not have, make their
    pictures here."""

    def __init__(self, engine: Generator, sync: WeightSync, own: LocalPictures) -> None:
        self.engine, self.sync, self.own = engine, sync, own

    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """As any generator does. keys, starts: [B] int64."""
        if plan.sampling.weights != LIVE:
            return self.own.generate(prompts, keys, starts, plan)
        self.sync.refresh()
        return self.sync.renewing(lambda: self.engine.generate(prompts, keys, starts, plan))
