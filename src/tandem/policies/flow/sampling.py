"""The sampler of a flow: prompts to pictures, in chunks of rows, with the random steps recorded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts.wrong_output import wrong_value
from tandem.dynamics.kernels import Step, next_state, ode
from tandem.dynamics.steps import Indices
from tandem.policies.flow.embeddings import PromptEmbedding, PromptEmbeddingCache
from tandem.policies.flow.records import FlowSampling, SamplerOutput, Trajectory
from tandem.policies.flow.solvers import solve
from tandem.policies.flow.velocity_model import VelocityModel, split_evenly
from tandem.policies.request import Request
from tandem.types import Prompt, concat


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """The steps of a rollout, independent of the policy."""

    sigmas: Tensor  # [steps + 1], from 1 to 0
    stochastic: Indices
    kept: Indices  # steps whose states are recorded; none: the loss is on whole pictures
    sampling: FlowSampling
    keep_mean: bool  # whether to record the means of random steps, for a KL to the sampler

    @classmethod
    def of(
        cls, sampling: FlowSampling, request: Request, *, tokens: int, iteration: int
    ) -> SamplingPlan:
        """The plan of an iteration. tokens: those of one picture, as the transformer sees it."""
        steps, random = sampling.steps, sampling.random_steps(iteration, request.seed)
        return cls(
            sigmas=sampling.schedule(steps, tokens),
            stochastic=random,
            kept=() if request.whole else queried_steps(request, steps) or random,
            sampling=sampling,
            keep_mean="kl_to_old" in request.needs,
        )


def queried_steps(request: Request, steps: int) -> Sequence[int]:
    """The denoising steps at which a teacher or another network is queried."""
    if request.query is not None:
        return range(steps)
    return () if request.teachers is None else request.teachers.compared_steps(steps)


class LocalPictures:
    """The built-in engine: it samples with the policy's own network."""

    def __init__(self, field: VelocityModel, library: PromptEmbeddingCache) -> None:
        self.field, self.library = field, library

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], keys: Tensor, starts: Tensor, plan: SamplingPlan
    ) -> tuple[SamplerOutput, Tensor]:
        """Latents with their trajectory, and pictures, uint8 [B, H, W, 3]. keys, starts: [B], keys
        of the noise of the steps and of the initial noise."""
        finished, pictures = [], []
        sampling, adapter, field = plan.sampling, self.field.adapter, self.field
        shape = adapter.canvas(sampling.resolution, sampling.frames).latent_shape
        for part in split_evenly(len(prompts), sampling.max_rows):
            some = [prompts[i] for i in part.tolist()]
            guided = sampling.guidance_scale > 1
            conditioning = self.library.rows(some, keys.device, guided=guided)
            own = int(part[0]), len(part)
            start = start_noise(starts.narrow(0, *own), shape)
            if sampling.solver is None:
                one = denoise(field, start, keys.narrow(0, *own), conditioning, plan)
            else:
                scale = sampling.guidance_scale
                velocity = partial(field, conditioning=conditioning, scale=scale)
                x0 = solve(velocity, start, sampling.solver, plan.sigmas)
                one = SamplerOutput(x0=x0, trajectory=None, logp=None)
            finished.append(one)
            made, like = adapter.decode(one.x0), adapter.image_shape
            if not isinstance(made, Tensor) or (made.dtype, made.ndim, len(made)) != (
                torch.uint8,
                len(like) + 1,
                len(one.x0),
            ):
                want = f"torch.uint8 {[len(one.x0), *like]}"
                raise wrong_value(adapter.decode, made, want)
            pictures.append(made)
        return concat(finished), torch.cat(pictures)


@torch.no_grad()
def denoise(
    field: VelocityModel,
    start: Tensor,
    keys: Tensor,
    conditioning: PromptEmbedding,
    plan: SamplingPlan,
) -> SamplerOutput:
    """The latents that the steps of a plan make of noise, with the steps that are trained.

    start: noise [N, *latent_shape]; keys: [N], the noise of step i is a function of key and i.
    Every state but the last is rounded to the storage dtype before it is used.
    """
    sampling = plan.sampling
    x = start.to(sampling.dtype).float()
    recorder = TrajectoryRecorder(sampling.dtype, plan.keep_mean)
    levels = plan.sigmas.to(x.device)
    for number, (level, after) in enumerate(itertools.pairwise(levels)):
        random, last = number in plan.stochastic, number == sampling.steps - 1
        sigma, next_sigma = level.expand(len(x)), after.expand(len(x))
        velocity = field(x, sigma, conditioning, scale=sampling.guidance_scale)
        kernel = sampling.kernel if random or sampling.deterministic else ode
        step = kernel(x, velocity, sigma, next_sigma)
        noise = rng.normal(rng.key(keys, number), x.shape[1:]) if random else torch.zeros_like(x)
        reached = next_state(step, noise, storage=torch.float32 if last else sampling.dtype)
        if number in plan.kept:
            logp = sampling.logp(reached, step) if random else None
            recorder.record(number, (x, reached), levels=(level, after), step=step, logp=logp)
        x = reached
    trajectory, logp = recorder.finish()
    return SamplerOutput(x0=x, trajectory=trajectory, logp=logp)


@dataclass(slots=True)
class TrajectoryRecorder:
    """Records the steps for training; a state that two steps share is stored once."""

    storage: torch.dtype
    keep_mean: bool
    states: list[Tensor] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    levels: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    gains: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    logp: list[Tensor | None] = field(default_factory=list)
    previous: int | None = None

    def record(
        self,
        number: int,
        ends: tuple[Tensor, Tensor],
        *,
        levels: tuple[Tensor, Tensor],
        step: Step,
        logp: Tensor | None,
    ) -> None:
        """Add a step. ends: states before and after it, [N, ...]; levels: their noise levels."""
        before, after = (x.to(self.storage) for x in ends)
        if self.previous is None or number != self.previous + 1:
            self.states.append(before)
        self.places.append(len(self.states) - 1)
        self.states.append(after)
        self.levels.append(levels)
        self.gains.append((step.std, step.velocity_gain))
        self.logp.append(logp)
        self.means += [step.mean] if self.keep_mean else []
        self.previous = number

    def finish(self) -> tuple[Trajectory | None, Tensor | None]:
        """The trajectory [N, T] and its log-probabilities [N, T], or None."""
        if not self.places:
            return None, None
        rows, device = len(self.states[0]), self.states[0].device
        sigma, next_sigma = (torch.stack(column) for column in zip(*self.levels, strict=True))
        std, gain = (torch.stack(column, 1) for column in zip(*self.gains, strict=True))
        trajectory = Trajectory(
            path=torch.stack(self.states, 1),
            place=torch.tensor(self.places, device=device).repeat(rows, 1),
            sigma=sigma.repeat(rows, 1),
            next_sigma=next_sigma.repeat(rows, 1),
            std=std,
            velocity_gain=gain,
            mean=torch.stack(self.means, 1) if self.means else None,
        )
        random = None not in self.logp
        return trajectory, torch.stack(self.logp, 1) if random else None


def start_noise(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """The initial noise of a rollout: [*keys.shape, *shape]."""
    return rng.normal(rng.key(keys, "start"), tuple(shape))
