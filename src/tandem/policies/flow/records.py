"""Sampling settings of a flow policy, and the sample that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import unbound
from tandem.dynamics.kernels import Kernel, flow_sde, ode
from tandem.dynamics.likelihood import LogProbability, gaussian_logp
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.steps import Indices, every_step, one_step
from tandem.policies.flow.snapshots import LIVE
from tandem.policies.flow.solvers import Solver

Condition = Mapping[str, Tensor]  # what a transformer reads of a prompt; [B, ...] once stacked
Schedule = Callable[[int, int], Tensor]  # (steps, tokens) -> sigma [steps + 1]
Choose = Callable[[int, int, int], Indices]  # (steps, iteration, seed) -> stochastic steps
Storage = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSampling:
    """How pictures are sampled."""

    steps: int  # denoising steps, each a forward pass
    kernel: Kernel = flow_sde  # of the stochastic steps; `ode` for none
    logp: LogProbability | None = gaussian_logp  # of the stochastic steps
    schedule: Schedule = linear_shift
    solver: Callable[[], Solver] | None = None  # of the ODE, in place of Euler and the schedule
    stochastic: Choose | None = every_step
    guidance_scale: float = 1.0  # classifier-free; above 1 it takes two forward passes
    resolution: int | None = None  # pixels along a side; None: as the policy is trained
    shared_noise: bool = False  # all samples of a group start from the same noise
    storage: Storage = "float32"  # of the states that are kept for training
    weights: str = LIVE  # or the name of a snapshot
    weights_from: int = 0  # updates before which the live weights sample all the same
    max_rows: int = 64  # of one forward pass: memory, nothing else

    def __post_init__(self) -> None:
        for name in ("steps", "guidance_scale", "max_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.deterministic and (self.logp is None or self.stochastic is None):
            raise ValueError("random steps need a log-probability, and to be told which they are")
        if self.solver is not None and not self.deterministic:
            raise ValueError("rollout.solver takes no random steps; leave it null or dynamics=ode")

    @property
    def deterministic(self) -> bool:
        return unbound(self.kernel)[0] is ode

    def branches(self, iteration: int, seed: int) -> list[FlowSampling]:
        """For each random step the way to sample in which it alone is random, and all samples of
        a group come to it by the same course."""
        return [
            replace(self, stochastic=partial(one_step, step=step), shared_noise=True)
            for step in self.stochastic(self.steps, iteration, seed)
        ]

    @property
    def dtype(self) -> torch.dtype:
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[self.storage]


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
