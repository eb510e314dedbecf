"""Hooks of Lightning: iterations, the optimiser, and the sharding of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from lightning.pytorch import LightningModule

from tandem.algorithm.algorithm import Algorithm
from tandem.training.batches import BatchPlan
from tandem.training.source import Iterations
from tandem.types import Prompt


class LightningHooks(LightningModule):
    """Everything but the training step, which is a subclass's."""

    policy: torch.nn.Module
    algorithm: Algorithm
    stream: torch.nn.Module
    optimizer: Callable[..., torch.optim.Optimizer]
    schedule: Callable[[int, int], float]
    plan: BatchPlan
    iteration: int
    sharded = False  # whether each rank holds a part of each weight

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False  # several updates per rollout

    def no_sync(self):
        """What keeps gradients of all but the last micro-batch on their rank."""
        wrapped = self.trainer.strategy.model
        return nullcontext() if wrapped is self else wrapped.no_sync()

    def train_dataloader(self) -> Iterations:
        """The iterations that are left; Lightning asks once a resumed run is back where it was."""
        plan = self.plan
        return Iterations(
            self.stream, range(self.iteration, plan.iterations), plan.prompts_per_step
        )

    def configure_model(self) -> None:
        """Lightning calls this on all ranks before there is an optimiser."""
        if self.device_mesh is not None and not self.sharded:
            self.policy.shard(self.device_mesh["data_parallel"])
            self.sharded = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = {name: {"params": group} for name, group in self.policy.groups().items()}
        if (critic := self.algorithm.critic) is not None:
            groups["critic"]["lr"] = critic.lr
        return self.optimizer(list(groups.values()))

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        factor = self.schedule(self.iteration, self.plan.iterations)
        for group in self.optimizers().param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def transfer_batch_to_device(self, batch: Sequence[Prompt], *_: object) -> Sequence[Prompt]:
        return batch  # prompts are text
