"""The base of policies of pictures: their weights, and the engine that samples with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem.dynamics.decays import Decay
from tandem.policies.base import Policy
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.engine import FlowFiles, Generator, SyncedPictures
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import EMA, LIVE, REFERENCE, FlowSampling
from tandem.policies.flow.sampling import LocalPictures
from tandem.policies.flow.snapshots import reads_reference

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PicturePolicy(Policy):
    """A flow policy that an engine makes pictures for: its own field, or somebody else's."""

    sampling: FlowSampling
    seed: int
    ema: Decay | None
    model: FlowModel
    library: PromptEmbeddingCache
    supply: WeightSync | None = None  # of an engine with weights of its own; None: it has none

    # Who samples, and with which weights.

    def host(self) -> Generator:
        """The engine of the weights that were loaded. Raises ValueError for what it cannot do."""
        own, option = LocalPictures(self.model.field, self.library), self.sampling.engine
        if option is None:
            return own
        engine = option.host(self)
        if option.shares_weights:
            return engine
        if self.sampling.weights != LIVE:
            raise ValueError(
                f"algorithm.rollout_weights={self.sampling.weights}: an engine of pictures has the "
                "live weights; set it to live, or rollout=denoise"
            )
        if self.sampling.staleness:
            raise ValueError(
                f"rollout.staleness={self.sampling.staleness}: an engine of pictures has the "
                "newest weights alone; set it to 0, or rollout=denoise"
            )
        self.supply = WeightSync(engine, FlowFiles(model=self.model), sleeps=option.sleeps)
        return SyncedPictures(engine, self.supply, own)

    def ready(self) -> None:
        if self.supply is not None:
            self.supply.refresh()

    def own_sampling(self) -> FlowSampling:
        """What is trained is sampled so: a snapshot may take over only after so many updates."""
        if self.model.snapshots.counts["update"] >= self.sampling.weights_from:
            return self.sampling
        return replace(self.sampling, weights=LIVE)

    def branches(self) -> list[FlowSampling]:
        """Ways to sample in this iteration, each with one random step of the policy's own."""
        return self.sampling.branches(self.iteration, self.seed)

    @contextmanager
    def summon_full_params(
        self, sampling: FlowSampling | None = None, needs: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        weights = (self.own_sampling() if sampling is None else sampling).weights
        of_reference = bool(needs) and reads_reference(needs)
        # In this order: what is gathered is what the ranks hold at that moment.
        with self.model.snapshots.under(weights), self.model.gathered(with_reference=of_reference):
            yield

    # The weights.

    @property
    def device(self) -> torch.device:
        return self.sampler.device

    def notify(self, event: Literal["update", "iteration"]) -> None:
        """Snapshots follow, and engines hear of it."""
        if event == "update" and self.supply is not None:
            self.supply.outdated()
        for snapshots in (self.model.snapshots, *self.model.averages.values()):
            snapshots.follow(event)
        if event == "iteration" and self.lagged.staleness:
            self.lagged.forget(self.iteration + 1)

    def renew_reference(self) -> None:
        self.model.snapshots.renew(REFERENCE)

    def shard(self, mesh: DeviceMesh) -> None:
        """All but teachers."""
        self.model.shard(mesh)

    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""
        return self.model.trainable()

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """What an optimiser treats alike: the policy first, then what learns beside it."""
        return self.model.groups()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        if self.supply is not None:
            self.supply.outdated()

    def state(self) -> dict[str, Tensor]:
        """What the policy remembers beside its weights; snapshots as snapshot/weight.

        Of any shape [...].
        """
        return {"sampler": self.sampler} | self.model.state() | self.lagged.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Of any shape [...]."""
        self.sampler.copy_(state["sampler"])
        others = {name: value for name, value in state.items() if name != "sampler"}
        self.model.load_state(others)
        self.lagged.load_state(state)

    def save(self, folder: str | Path) -> None:
        """In the layout of diffusers; adapters are merged, and lie beside it in `lora`. An average
        of the weights is a whole model too, in `ema`."""
        self.model.save(Path(folder))
        if self.ema is not None:
            with self.model.snapshots.under(EMA):
                self.model.save(Path(folder) / EMA)
