"""The base of policies of pictures: their weights, and the engine that samples with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.dynamics.decays import Decay
from tandem.policies.base import Policy
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.flow import admission
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.admission import Split
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.engine import FlowFiles, Generator, SyncedPictures
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import (
    EMA,
    LIVE,
    REFERENCE,
    FlowSample,
    FlowSampling,
    as_rollout,
)
from tandem.policies.flow.sampling import LocalPictures, queried_steps
from tandem.policies.flow.sizes import cropped, sampled_apart
from tandem.policies.flow.snapshots import reads_reference
from tandem.policies.flow.velocity_model import cost_of_points
from tandem.policies.request import Request
from tandem.types import Prompt, Rollout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PicturePolicy(Policy):
    """A flow policy that an engine makes pictures for: its own field, or somebody else's."""

    sampling: FlowSampling
    request: Request
    adapter: Adapter
    path: str | None
    ema: Decay | None
    model: FlowModel
    library: PromptEmbeddingCache
    paints = True
    asks_sizes = False  # some prompt asks for a picture that is not as large as the model's own
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
        return self.sampling.branches(self.iteration, self.request.seed)

    @contextmanager
    def summon_full_params(
        self, sampling: FlowSampling | None = None, needs: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        weights = (self.own_sampling() if sampling is None else sampling).weights
        of_reference = bool(needs) and reads_reference(needs)
        # In this order: what is gathered is what the ranks hold at that moment.
        with self.model.snapshots.under(weights), self.model.gathered(with_reference=of_reference):
            yield

    # What is asked.

    def admit(self, prompts: Sequence[Prompt], samplings: Sequence[FlowSampling] = ()) -> Split:
        """The prompts that can be painted by the policy's own sampling and by these, encoded by
        now, and the others with the reason."""
        for sampling in samplings:
            self.adapter.canvas(sampling.resolution, sampling.frames)  # or it cannot be painted
        admission.warn_of_evaluation(self.adapter, self.sampling, samplings, path=self.path)
        setting = admission.guided_by(self.sampling, samplings, self.request.timesteps)
        admission.check_guidance(self.adapter, setting, path=self.path)
        kept, dropped = admission.paintable(prompts, self.library, guided_by=setting)
        self.asks_sizes |= any(prompt.size is not None for prompt in kept)
        self.library.prepare(self.library.inputs(kept, guided=setting is not None), self.device)
        return kept, dropped

    def admit_answered(self, examples: Sequence[Prompt]) -> Split:
        """The demonstrations that have a picture of the right size, and the others."""
        shown, without = admission.pictured(examples, self.adapter)
        kept, dropped = self.admit(shown)
        return kept, without + dropped

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Pictures of demonstrations, each one step or one for each noise level.

        Their noise levels and noise are functions of key and slot: the rows of a slot share them,
        whatever algorithm.timestep_sampling.shared says of samples.
        """
        sizes = {example.size for example in examples}
        self.asks_sizes |= sizes != {None}
        if len(sizes) > 1:
            again = partial(self.encode, key=key)
            return sampled_apart(examples, slots, 1, lambda some, own: again(some, slots=own))
        group = torch.tensor(slots, device=self.device)
        pictures = torch.stack([admission.shown(example, self.adapter) for example in examples])
        parts = pictures.split(self.sampling.max_rows)
        x0 = torch.cat([self.adapter.latents(part, self.device) for part in parts])
        # Data knows of no guidance.
        guidance = torch.ones(group.shape, dtype=torch.float64, device=group.device)
        sample = FlowSample(x0=x0, key=rng.key(group, after=key), guidance=guidance)
        steps = self.request.steps_of_a_picture
        return as_rollout(examples, sample, pictures, group=group, steps=steps)

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text that a picture is asked for by."""
        return prompt.text

    def sized(self, rollout: Rollout) -> Rollout:
        """Rows of one size without the margin that they may have."""
        if not self.asks_sizes:
            return rollout
        return cropped(rollout, self.adapter.canvas(rollout.prompts[0].size).latent_shape)

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that a forward pass reads for each row, [B] int64."""
        fresh = rollout.sample.trajectory is None
        levels = self.request.timesteps.count // rollout.mask.shape[1] if fresh else 1
        guided = rollout.sample.guidance.gt(1).long()
        if fresh or queried_steps(self.request, self.sampling.steps):
            guided = int(self.request.timesteps.guidance_scale > 1)
        points = rollout.mask.sum(1) if self.request.networks else rollout.length
        tokens = sum(self.adapter.tokens)
        if self.asks_sizes:
            (_, read), asked = self.adapter.tokens, [prompt.size for prompt in rollout.prompts]
            painted = {size: self.adapter.canvas(size).tokens for size in {*asked}}
            tokens = torch.tensor([painted[size] + read for size in asked]).to(points.device)
        return cost_of_points(self.request, tokens, guided, levels * points)

    # The weights.

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
