"""A run of the training step on a policy without a network, under Lightning and all callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from lightning.pytorch import Trainer
from records import GRPO
from table_policy import TablePolicy
from torch import nn

from tandem.algorithm.algorithm import Algorithm
from tandem.evaluation.settings import Answers, Evaluation
from tandem.experience import Budget
from tandem.policies.language.records import Sampling
from tandem.record.run_record import RunRecord
from tandem.rewards import Reward, Rewards
from tandem.settings.guards import Guards
from tandem.training import callbacks
from tandem.training.batches import BatchPlan
from tandem.training.module import PostTraining
from tandem.types import Prompt, Rollout

ITERATIONS = 6
EVERY = 2
HEALTHY = Guards()
SETTINGS = Answers(
    every=EVERY, prompts=6, samples=2, temperatures=(1.0, 0.5), pass_at=(1, 4), rows=2
)


class Policy(TablePolicy):
    """A policy with weights to save and answers to evaluate."""

    def __init__(self) -> None:
        super().__init__(dtype=torch.float32)
        self.sampling = Sampling(max_new_tokens=5, max_rows=16)

    def sample(self, prompts, group_size, *, key, slots, sampling=None) -> Rollout:
        return super().sample(prompts, group_size, key=key, slots=slots)

    def describe_prompt(self, prompt: Prompt) -> str:
        return f"{prompt.text}{prompt.id}"

    def describe_steps(self, rollout, row):
        return ()

    def weights(self) -> dict[str, torch.Tensor]:
        return {"table": self.table.detach()}

    def load_weights(self, weights) -> None:
        with torch.no_grad():
            self.table.copy_(weights["table"])

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state) -> None:
        assert not state


class Stream(nn.Module):
    """Prompts by number; counts the reported successes. It may end a run as a user does, by an
    exception that nothing catches."""

    def __init__(self, *, dies_at: int | None = None) -> None:
        super().__init__()
        self.dies_at = dies_at  # iteration
        self.register_buffer("heard", torch.zeros((), dtype=torch.float64))

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        self.heard_in = iteration
        first = 100 * iteration + int(self.heard) % 7
        return [Prompt(id=i, source="toy", text="?") for i in range(first, first + count)]

    def observe(self, sources, success) -> None:
        if self.heard_in == self.dies_at:
            raise KeyboardInterrupt
        self.heard += success.double().sum()


class Loader:
    """The prompts of the remaining iterations."""

    def __init__(self, module: PostTraining) -> None:
        self.module = module

    def __len__(self) -> int:
        return self.module.plan.iterations - self.module.iteration

    def __iter__(self):
        while len(self):
            yield self.module.stream.draw(self.module.iteration, self.module.plan.prompts_per_step)


def share_of_threes(output: str, prompt: Prompt) -> float:
    return output.count("3") / max(len(output), 1)


def halving(iteration: int, iterations: int) -> float:
    return 1 - iteration / (2 * iterations)


def held_out() -> list[Prompt]:
    return [Prompt(id=i, source=f"last_{i % 2}", text="?") for i in range(10**6, 10**6 + 12)]


def module_in(
    folder: Path,
    *,
    reward=share_of_threes,
    judges: Mapping[str, Reward] = MappingProxyType({}),
    iterations: int = ITERATIONS,
    dies_at: int | None = None,
    guards: Guards = HEALTHY,
    timeout: float | None = None,
    algorithm: Algorithm = GRPO,
    schedule=halving,
    full: Mapping[str, float] = MappingProxyType({}),
) -> PostTraining:
    plan = BatchPlan(
        seed=0, iterations=iterations, prompts_per_step=6, group_size=4, num_minibatches=2,
        epochs=1, budget=Budget(), max_grad_norm=1.0,
    )  # fmt: skip
    return PostTraining(
        policy=Policy(), algorithm=algorithm,
        rewards=Rewards({"threes": Reward(reward, timeout=timeout), **judges}, full=full),
        stream=Stream(dies_at=dies_at), optimizer=partial(torch.optim.AdamW, lr=0.05),
        schedule=schedule, plan=plan, guards=guards, folder=folder,
    )  # fmt: skip


def run(
    folder: Path, *, resume: bool = False, evaluation: Evaluation = SETTINGS, mirrors=(),
    devices: int = 1, checkpoint_every: int = EVERY, **of_module,
) -> PostTraining:  # fmt: skip
    """Train in `folder`, or resume there."""
    module = module_in(folder, **of_module)
    record = RunRecord(folder, mirrors=mirrors)
    record.begin("seed: 0\n", seed=0, command=["train.py"], resumed=resume)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, devices=devices,
        strategy="auto" if devices == 1 else "ddp_fork",
        callbacks=callbacks.standard(
            record=record, evaluation=evaluation, held_out=held_out(),
            checkpoint_every=checkpoint_every, keep=2, resume=resume,
        ),
    )  # fmt: skip
    trainer.fit(module, Loader(module))
    return module


def expected_table(folder: Path) -> torch.Tensor:
    """The weights in the newest checkpoint of a run."""
    return callbacks.newest_policy(folder)[0]["table"]


def often(settings: Evaluation = SETTINGS) -> Evaluation:
    """An evaluation before every iteration."""
    return replace(settings, every=1)
