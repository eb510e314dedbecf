"""Records of a flow policy: sampling settings, the steps that it keeps, and rows of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import at_least, unwrap_partial
from tandem.dynamics.kernels import Kernel, flow_sde, ode
from tandem.dynamics.likelihood import LogProbability, gaussian_logp
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.steps import Indices, every_step, one_step
from tandem.policies.engines.protocol import EngineOption, check_kind
from tandem.policies.flow.solvers import Solver, noise_levels
from tandem.types import Picture, Prompt, Rollout

LIVE, EMA = "live", "ema"  # snapshots that are always there, and that model.ema keeps
REFERENCE = "reference"  # and the one that a KL is renewed by
Condition = Mapping[str, Tensor]  # what a transformer reads of a prompt; [B, ...] once stacked
Schedule = Callable[[int, int], Tensor]  # (steps, tokens) -> sigma [steps + 1]
Choose = Callable[[int, int, int], Indices]  # (steps, iteration, seed) -> stochastic steps
Storage = Literal["float32", "bfloat16", "float16"]
DTYPES: Mapping[Storage, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """What encoders read: of a prompt, or of what guidance leads away from."""

    text: str
    images: tuple[Picture, ...] = ()  # that the prompt shows
    negative: bool = False  # some families read the latter in another way
    size: tuple[int, int] | None = (
        None  # of the picture that is made of those shown; None: as usual
    )

    @property
    def name(self) -> str:
        """A hash of all of it."""
        said = f"negative:{self.text}" if self.negative else self.text
        shown = [f"\n{picture.name}" for picture in self.images]
        sized = [] if self.size is None else [f"\n{self.size}"]
        return hashlib.sha256("".join([said, *shown, *sized]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSampling:
    """How pictures are sampled."""

    steps: int  # denoising steps, each a forward pass
    kernel: Kernel = flow_sde  # of the stochastic steps; `ode` for none
    logp: LogProbability | None = gaussian_logp  # of the stochastic steps
    schedule: Schedule = linear_shift
    solver: Callable[[Tensor], Solver] | None = None  # of the ODE, in place of Euler
    stochastic: Choose | None = every_step
    guidance_scale: float = 1.0  # classifier-free; above 1 it takes two forward passes
    # Pixels along a side, or height and width; None: as a prompt says, or as the policy is trained
    resolution: int | tuple[int, int] | None = None
    frames: int | None = None  # of a film; None: as the policy is trained
    shared_noise: bool = False  # all samples of a group start from the same noise
    storage: Storage = "float32"  # of the states that are kept for training
    weights: str = LIVE  # or the name of a snapshot
    weights_from: int = 0  # updates before which the live weights sample all the same
    max_rows: int = 64  # of one forward pass: memory, nothing else
    staleness: Annotated[int, at_least(0)] = 0  # iterations that samples may be ahead of training
    order: Literal["exact", "ready"] = "exact"  # rows of its own iteration; or those that are there
    engine: EngineOption | None = None  # who makes the pictures; None: the policy itself
    deterministic: bool = field(init=False)  # whether no step is random
    dtype: torch.dtype = field(init=False)  # of the states that are kept

    def __post_init__(self) -> None:
        object.__setattr__(self, "deterministic", unwrap_partial(self.kernel)[0] is ode)
        object.__setattr__(self, "dtype", DTYPES[self.storage])
        for name in ("steps", "guidance_scale", "max_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.deterministic and (self.logp is None or self.stochastic is None):
            raise ValueError("random steps need a log-probability, and to be told which they are")
        if self.solver is not None and not self.deterministic:
            raise ValueError("rollout.solver takes no random steps; leave it null or dynamics=ode")
        if self.engine is not None:
            check_kind(self.engine, "flow")

    def random_steps(self, iteration: int, seed: int) -> Indices:
        """Those of an iteration; none where the sampler follows the ODE."""
        return () if self.deterministic else self.stochastic(self.steps, iteration, seed)

    def branches(self, iteration: int, seed: int) -> list[FlowSampling]:
        """For each random step the way to sample in which it alone is random, and all samples of
        a group come to it by the same course."""
        return [
            replace(self, stochastic=partial(one_step, step=step), shared_noise=True)
            for step in self.random_steps(iteration, seed)
        ]

    def levels(self, tokens: int) -> Tensor:
        """The noise levels of its steps, from noise to 0: [steps + 1]; `tokens` of a picture."""
        levels = self.schedule(self.steps, tokens)
        return levels if self.solver is None else noise_levels(self.solver, levels)

    @property
    def iterations_ahead(self) -> int:
        """Iterations beyond the present one whose prompts are drawn."""
        return self.staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Steps of a rollout that are trained: step t goes from path[place] to path[place + 1].

    They are the random ones, or those at which a teacher is asked. Neighbours share a state.
    """

    path: Tensor  # [B, P, ...] in the storage dtype, T < P <= 2 T
    place: Tensor  # [B, T] int64
    sigma: Tensor  # [B, T] before the step
    next_sigma: Tensor  # [B, T] and after it
    std: Tensor  # [B, T] of the noise of the step
    velocity_gain: Tensor  # [B, T] d mean / d velocity, below 0
    mean: Tensor | None = None  # [B, T, ...] float32 of the old policy; None: nobody reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSample:
    """Finished pictures, how they came to be, and the key of noise that may be put on them."""

    x0: Tensor  # [B, C, H, W] float32, as the transformer sees a picture
    key: Tensor  # [B] int64 of the noise of regression; the samples of a group may share it
    guidance: Tensor  # [B] float64 scale that the policy is taken at
    trajectory: Trajectory | None = None  # None: sampled by the ODE, or given


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """Rows of one pass from noise to data."""

    x0: Tensor  # [N, *latent_shape] float32
    trajectory: Trajectory | None  # None: no step was kept
    logp: Tensor | None  # [N, T] nats per latent dimension; None: some of the steps had no noise


def as_rollout(
    prompts: Sequence[Prompt],
    sample: FlowSample,
    pictures: Tensor,
    *,
    group: Tensor,
    steps: int,
    logp: Tensor | None = None,
) -> Rollout:
    """One row per picture, of so many steps unless some were kept.

    Every step of a picture is trained, and no picture is cut off. group: [B].
    """
    if sample.trajectory is not None:
        steps = sample.trajectory.place.shape[1]
    return Rollout(
        sample=sample,
        outputs=tuple(pictures.unbind()),
        prompts=tuple(prompts),
        mask=torch.ones(len(group), steps, dtype=torch.bool, device=group.device),
        group=group,
        length=torch.full_like(group, steps),
        truncated=torch.zeros_like(group, dtype=torch.bool),
        behaviour_logp=logp,
    )


def renew_noise(rollout: Rollout, epoch: int) -> Rollout:
    """The same pictures, to be noised anew; those that shared their noise still do."""
    key = rng.key(rollout.sample.key, "epoch", epoch)
    return replace(rollout, sample=replace(rollout.sample, key=key))


def pick(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the mask; where there is none, one that counts for nothing.

    Shape: [B, T] bool -> [N] and [N].
    """
    row, column = mask.nonzero(as_tuple=True)
    if not len(row):  # ranks wait for gradients of all weights
        row = column = torch.zeros(1, dtype=torch.int64, device=mask.device)
    return row, column


def scatter(values: Tensor, row: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """[N, ...] -> [B, T, ...], 0 outside the mask."""
    spread = values.new_zeros(*mask.shape, *values.shape[1:]).index_put((row, step), values)
    return torch.where(mask.view(*mask.shape, *(1,) * (values.ndim - 1)), spread, 0)
