"""Records of a flow policy: sampling settings, recorded steps, and rows of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import at_least, facts_of, name_of, unwrap_partial
from tandem.contracts.wrong_output import WrongOutput
from tandem.dynamics.kernels import Kernel, flow_sde, ode
from tandem.dynamics.likelihood import LogProbability, gaussian_logp
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.steps import Indices, every_step, one_step
from tandem.policies.engines.protocol import EngineOption, check_kind
from tandem.policies.flow.solvers import Solver, noise_levels
from tandem.types import Picture, Prompt, Rollout

LIVE, EMA = "live", "ema"  # the current weights, and the average that model.ema keeps
REFERENCE = "reference"  # the snapshot of a reference that is renewed
Condition = Mapping[str, Tensor]  # an encoded prompt; [B, ...] once stacked
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
    """The input of prompt encoders: a prompt, or a negative prompt."""

    text: str
    images: tuple[Picture, ...] = ()  # input images
    negative: bool = False  # some families encode negative prompts differently
    size: tuple[int, int] | None = None  # of the edited picture; None: the model's own

    @property
    def name(self) -> str:
        """A hash of all fields."""
        shown = [picture.name for picture in self.images]
        fields = repr((self.text, shown, self.negative, self.size))
        return hashlib.sha256(fields.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSampling:
    """How pictures are sampled."""

    steps: Annotated[int, at_least(1)]  # denoising steps, each a forward pass
    kernel: Kernel = flow_sde  # form of the stochastic steps; a noiseless one: of all steps
    logp: LogProbability | None = gaussian_logp  # log-probability of the stochastic steps
    schedule: Schedule = linear_shift  # noise levels of the steps
    solver: Callable[[Tensor], Solver] | None = None  # solver of the ODE; null: Euler
    stochastic: Choose | None = every_step  # which steps are random; null if none is
    # Scale of classifier-free guidance; above 1 it takes two forward passes.
    guidance_scale: Annotated[float, at_least(1)] = 1.0
    # Pixels along a side, or height and width; null: the prompt's size, or that of training.
    resolution: int | tuple[int, int] | None = None
    frames: int | None = None  # frames of a video; null: as in training
    shared_noise: bool = False  # all samples of a group start from the same noise
    storage: Storage = "float32"  # dtype of the states recorded for training
    weights: str = LIVE  # live, or the name of a snapshot that samples
    weights_from: int = 0  # updates until which the live weights sample instead
    # Rows of one forward pass: more take memory, and less time.
    max_rows: Annotated[int, at_least(1)] = 64
    staleness: Annotated[int, at_least(0)] = 0  # iterations that samples may be ahead of training
    # exact: the iteration's own rows; ready: any complete rows.
    order: Literal["exact", "ready"] = "exact"
    engine: EngineOption | None = None  # engine that generates images; null: the policy itself
    deterministic: bool = field(init=False)  # whether no step is random
    dtype: torch.dtype = field(init=False)  # of the recorded states

    def __post_init__(self) -> None:
        object.__setattr__(self, "deterministic", facts_of(self.kernel).noiseless)
        object.__setattr__(self, "dtype", DTYPES[self.storage])
        if not self.deterministic and (self.logp is None or self.stochastic is None):
            raise ValueError("random steps need dynamics/logp and dynamics/stochastic; set both")
        if self.solver is not None and unwrap_partial(self.kernel)[0] is not ode:
            kernel = f"steps of dynamics={name_of(self.kernel)}" if self.deterministic else ""
            raise ValueError(
                f"solver={name_of(self.solver)} takes no {kernel or 'random steps'}; set it to "
                "null, or dynamics=ode"
            )
        if self.engine is not None:
            check_kind(self.engine, "flow")

    def random_steps(self, iteration: int, seed: int) -> Indices:
        """The random steps of an iteration; none if the sampler follows the ODE.

        Raises WrongOutput for others than ascending indices from 0 to steps - 2.
        """
        if self.deterministic:
            return ()
        found = self.stochastic(self.steps, iteration, seed)
        chosen = tuple(found) if isinstance(found, Iterable) else ()
        if not chosen or chosen != tuple(sorted({*chosen} & {*range(self.steps - 1)})):
            raise WrongOutput(
                f"dynamics/stochastic={name_of(self.stochastic)} chose the steps "
                f"{chosen or found} of {self.steps}; choose at least one, each once and in "
                f"order, of 0 to {self.steps - 2}: the last one follows the ODE"
            )
        return chosen

    def branches(self, iteration: int, seed: int) -> list[FlowSampling]:
        """One sampling per random step in which only that step is random; the samples of a group
        share the path up to it."""
        return [
            replace(self, stochastic=partial(one_step, step=step), shared_noise=True)
            for step in self.random_steps(iteration, seed)
        ]

    def levels(self, tokens: int) -> Tensor:
        """The noise levels of the steps, from noise to 0: [steps + 1]; `tokens`: of a picture."""
        levels = self.schedule(self.steps, tokens)
        return levels if self.solver is None else noise_levels(self.solver, levels)

    @property
    def iterations_ahead(self) -> int:
        """Iterations beyond the current one whose prompts are drawn early."""
        return self.staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The trained steps of a rollout: step t goes from path[place] to path[place + 1].

    These are the random steps, or those at which a teacher is queried. Neighbours share a state.
    """

    path: Tensor  # [B, P, ...] in the storage dtype, T < P <= 2 T
    place: Tensor  # [B, T] int64
    sigma: Tensor  # [B, T] before the step
    next_sigma: Tensor  # [B, T] and after it
    std: Tensor  # [B, T] of the noise of the step
    velocity_gain: Tensor  # [B, T] d mean / d velocity, below 0
    mean: Tensor | None = None  # [B, T, ...] float32 of the old policy; None: not needed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSample:
    """Finished pictures, their trajectories, and the keys of noise added to them in training."""

    x0: Tensor  # [B, C, H, W] float32 latents
    key: Tensor  # [B] int64 of the noise of regression; the samples of a group may share it
    guidance: Tensor  # [B] float64 guidance scale of the policy
    trajectory: Trajectory | None = None  # None: sampled by the ODE, or demonstrations


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """Rows of one pass from noise to data."""

    x0: Tensor  # [N, *latent_shape] float32
    trajectory: Trajectory | None  # None: no step was recorded
    logp: Tensor | None  # [N, T] nats per latent dimension; None: some steps are deterministic


def as_rollout(
    prompts: Sequence[Prompt],
    sample: FlowSample,
    pictures: Tensor,
    *,
    group: Tensor,
    steps: int,
    logp: Tensor | None = None,
) -> Rollout:
    """One row per picture, with the recorded steps or else `steps` steps.

    Every step is trained, and no picture is truncated. group: [B].
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
    """The same pictures with new noise keys; rows that shared noise still do."""
    key = rng.key(rollout.sample.key, "epoch", epoch)
    return replace(rollout, sample=replace(rollout.sample, key=key))


def pick(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the True entries of the mask; (0, 0) if there are none.

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
