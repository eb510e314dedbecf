"""The workloads of flows: two transformers, three algorithms, and the calls of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from flow_latents import Latents, grey
from torch import Tensor

from tandem.advantages import shaping
from tandem.advantages.group import given, group_relative, unbiased_std
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.regularizers import EntropyBonus, KLInLoss
from tandem.data.shapes import Pictures, shapes
from tandem.data.stream import PromptStream
from tandem.dynamics.kernels import flow_sde
from tandem.experience import Budget
from tandem.losses import importance, kl, reduction
from tandem.losses.policy import nll, ppo
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.rewards import Reward, Rewards
from tandem.settings.guards import Guards
from tandem.training import collect, strategies
from tandem.training.batches import BatchPlan
from tandem.training.module import PostTraining
from tandem.types import Prompt

GRPO = Algorithm(
    objective="policy_gradient",
    sampling_strategy=collect.on_policy,
    truncation_handling=shaping.train,
    advantage=partial(group_relative, scale=unbiased_std),
    normalize_advantages=False,
    loss=partial(ppo, clip_low=2e-3, clip_high=2e-3),
    weights=reduction.sequence_mean,
    importance_sampling=importance.none,
    old_logprobs=importance.recompute,
    kl=KLInLoss(coef=0.0, loss=kl.gaussian),
    entropy=EntropyBonus(coef=0.0),
    critic=None,
    target_kl=None,
)
ALGORITHMS = {
    "grpo": GRPO,
    "grpo, KL": replace(GRPO, kl=KLInLoss(coef=0.1, loss=kl.gaussian)),
    "sft": replace(
        GRPO, objective="any", sampling_strategy=strategies.offline, advantage=given, loss=nll,
        weights=reduction.token_mean,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    says: str  # one line for the report
    adapter: Callable[[], Adapter]
    prompts: Callable[[], tuple[Prompt, ...]]  # with pictures to imitate
    steps: int  # denoising steps, all but the last random
    groups: int  # per iteration of a sampling algorithm
    group_size: int
    updates: int  # of one iteration
    rounds: int
    shown: int  # images per update of imitation, which is a whole iteration
    shown_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The minimal calls of a transformer in an iteration."""

    pictures: int  # sampled together, one forward pass per step
    steps: int
    updates: int
    rows: int  # of the forward and backward pass of an update
    referred: bool  # whether the KL to the reference takes as many forward rows

    @classmethod
    def of(cls, workload: Workload, algorithm: Algorithm) -> Work:
        referred = algorithm.kl.coef != 0
        if algorithm.sampling_strategy is strategies.offline:
            return cls(pictures=0, steps=0, updates=1, rows=workload.shown, referred=referred)
        pictures = workload.groups * workload.group_size
        return cls(
            pictures=pictures,
            steps=workload.steps,
            updates=workload.updates,
            rows=pictures // workload.updates * (workload.steps - 1),
            referred=referred,
        )

    @property
    def imitates(self) -> bool:
        return self.pictures == 0

    @property
    def calls(self) -> Counter[tuple[int, bool]]:
        """(rows, with gradient) -> number of calls."""
        training = Counter({(self.rows, True): self.updates})
        without = Counter({(self.pictures, False): self.steps})
        without += Counter({(self.rows, False): self.updates * self.referred})
        return training + without


def module_of(
    workload: Workload, algorithm: Algorithm, folder: Path, *, iterations: int
) -> PostTraining:
    """The module of a run in which every update, and every denoising step, is one forward pass."""
    work = Work.of(workload, algorithm)
    most = max(work.pictures, work.rows)
    sampling = FlowSampling(steps=workload.steps, kernel=flow_sde, max_rows=most)
    policy = FlowPolicy(adapter=workload.adapter(), row_budget=work.rows)
    policy.load(algorithm.request(sampling))
    return PostTraining(
        policy=policy,
        algorithm=algorithm,
        rewards=Rewards({"brightness": Reward(brightness)}),
        stream=PromptStream(workload.prompts(), seed=0),
        optimizer=adamw,
        schedule=lambda iteration, iterations: 1.0,
        plan=BatchPlan(
            seed=0,
            iterations=iterations,
            prompts_per_step=workload.shown if work.imitates else workload.groups,
            group_size=1 if work.imitates else workload.group_size,
            num_minibatches=work.updates,
            epochs=1,
            budget=Budget(),
            max_grad_norm=1.0,
        ),
        guards=Guards(),
        folder=folder,
    )


adamw = partial(torch.optim.AdamW, lr=1e-5, weight_decay=0.0, fused=True)


def brightness(output: Tensor, prompt: Prompt) -> float:
    """Brightness of an image [H, W, 3], from 0 to 1."""
    return float(output.double().mean()) / 255


def colour_prompts() -> tuple[Prompt, ...]:
    return shapes(demonstrations=Pictures(count=1024), seed=0).demonstrations


WORKLOADS = (
    Workload(
        name="tiny_flow",
        says="a small SD3 transformer (0.45 M parameters, 16 image and 5 text tokens)",
        adapter=TinyFlow,
        prompts=colour_prompts,
        steps=9,
        groups=8,
        group_size=8,
        updates=2,
        rounds=10,
        shown=64,
        shown_rounds=30,
    ),
    Workload(
        name="sd3_48m",
        says="an SD3 transformer of 48 M parameters at 64 x 64 latents (1024 image and 77 text "
        "tokens), random weights",
        adapter=Latents,
        prompts=grey,
        steps=3,
        groups=1,
        group_size=2,
        updates=1,
        rounds=2,
        shown=2,
        shown_rounds=3,
    ),
)
