"""Picture engines: they generate pictures from noise for a flow policy.

An engine with a copy of the weights subclasses `PictureEngine` and defines `sync` and `generate`.
`@register_rollout_engine("name")` above the class makes it `rollout=name`, as for tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from tandem.contracts.outputs import WIDE
from tandem.contracts.wrong_output import wrong_value
from tandem.policies.engines.answer_checks import check_tensors
from tandem.policies.engines.protocol import EngineOption, WeightHolder
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import LIVE, SamplerOutput, Trajectory
from tandem.policies.flow.sampling import LocalPictures, SamplingPlan
from tandem.types import Prompt

if TYPE_CHECKING:
    from tandem.policies.flow.adapter import Adapter
    from tandem.policies.flow.embeddings import PromptEmbeddingCache
    from tandem.policies.weights import Precision


class Generator(Protocol):
    """The interface that a flow policy requires of an engine."""

    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """Latents with the steps in `plan.kept`, and pictures: uint8 [B, H, W, 3].

        One row per prompt. keys, starts: [B] int64, keys of the noise of the steps and of the
        initial noise; an engine with its own generator uses them as seeds.
        """


class Painting(Protocol):
    """The attributes of a flow policy that its engine may read."""

    adapter: Adapter  # encodes prompts, decodes latents, loads weights
    library: PromptEmbeddingCache
    precision: Precision


class PictureOption(EngineOption):
    """The value of `rollout.engine` for a flow: the settings of a `Generator`, or one itself."""

    samples: ClassVar[Literal["tokens", "flow"]] = "flow"

    @abstractmethod
    def host(self, policy: Painting) -> Generator:
        """The engine of a policy with loaded weights: a PictureEngine unless it shares them."""


class PictureEngine(WeightHolder, PictureOption):
    """An engine that holds a copy of the weights; a subclass defines `sync` and `generate`.

    `sync` receives the live weights in the layout of diffusers, with LoRA adapters merged.
    """

    def host(self, policy: Painting) -> Generator:
        return self

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """See `Generator.generate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFiles:
    """The weights of a flow, to be sent to an engine."""

    model: FlowModel
    adapter = False
    is_sharded = False

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def copy_to_host(self) -> FlowFiles:
        """Not needed: picture engines do not sample ahead."""
        raise NotImplementedError("a picture engine receives the current weights, never a copy")


class SyncedPictures:
    """An engine with a copy of the live weights; snapshots are sampled by the policy itself."""

    def __init__(self, engine: Generator, sync: WeightSync, own: LocalPictures) -> None:
        self.engine, self.sync, self.own = engine, sync, own

    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """See `Generator.generate`. keys, starts: [B] int64."""
        if plan.sampling.weights != LIVE:
            return self.own.generate(prompts, keys, starts, plan)
        self.sync.refresh()
        made = self.sync.renewing(lambda: self.engine.generate(prompts, keys, starts, plan))
        check_generated(self.engine.generate, made, keys, plan, self.own.field.adapter)
        return made


class CheckedPictures:
    """An engine that generates with the trained weights themselves, with its results checked."""

    def __init__(self, engine: Generator, adapter: Adapter) -> None:
        self.engine, self.adapter = engine, adapter

    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """See `Generator.generate`. keys, starts: [B] int64."""
        made = self.engine.generate(prompts, keys, starts, plan)
        check_generated(self.engine.generate, made, keys, plan, self.adapter)
        return made


def check_pictures(part: Callable, pictures: Tensor, rows: int, like: Sequence[int]) -> None:
    """Raise WrongOutput unless there are uint8 [rows, H, W, 3], or films. like: the shape of one,
    whose sides may differ."""
    tensor = isinstance(pictures, Tensor) and pictures.dtype == torch.uint8
    ends = (pictures.ndim, len(pictures), pictures.shape[-1]) if tensor else None
    if ends != (len(like) + 1, rows, like[-1]):
        raise wrong_value(part, pictures, f"torch.uint8 {[rows, *like]}, channels last")


def check_generated(
    part: Callable, made: object, keys: Tensor, plan: SamplingPlan, adapter: Adapter
) -> None:
    """Raise WrongOutput unless an engine made latents with the kept steps, and pictures. No number
    is read. keys: [B]."""
    if not isinstance(made, tuple) or [type(one) for one in made[:1]] != [SamplerOutput]:
        raise wrong_value(part, made, "(SamplerOutput, pictures)")
    output, pictures = made
    check_pictures(part, pictures, len(keys), adapter.image_shape)
    sampling = plan.sampling
    latent = adapter.canvas(sampling.resolution, sampling.frames).latent_shape
    rows = [len(keys), *latent]
    check_tensors(part, {"SamplerOutput.x0": (output.x0, rows, [torch.float32])}, keys.device)
    if plan.kept:
        check_steps(part, output, plan, rows)


def check_steps(
    part: Callable, output: SamplerOutput, plan: SamplingPlan, rows: Sequence[int]
) -> None:
    """Raise WrongOutput unless the recorded steps are those that the plan keeps. rows: the shape of
    x0, which is valid."""
    taken, (count, *latent) = output.trajectory, rows
    if not isinstance(taken, Trajectory):
        raise wrong_value(part, taken, "the steps of plan.kept as SamplerOutput.trajectory")
    steps = [count, len(plan.kept)]
    states = taken.path.shape[1] if isinstance(taken.path, Tensor) and taken.path.ndim > 1 else "P"
    given = {
        "Trajectory.sigma": (taken.sigma, steps, WIDE),
        "Trajectory.next_sigma": (taken.next_sigma, steps, WIDE),
        "Trajectory.std": (taken.std, steps, WIDE),
        "Trajectory.velocity_gain": (taken.velocity_gain, steps, WIDE),
        "Trajectory.path": (taken.path, [count, states, *latent], [plan.sampling.dtype]),
        "Trajectory.place": (taken.place, steps, [torch.int64]),
    }
    if plan.keep_mean:
        given["Trajectory.mean"] = taken.mean, [*steps, *latent], [torch.float32]
    if {*plan.kept} <= {*plan.stochastic}:
        given["SamplerOutput.logp"] = (output.logp, steps, [torch.float32])
    check_tensors(part, given, output.x0.device)
