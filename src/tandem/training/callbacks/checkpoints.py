"""Checkpoints: when a run publishes them, and how it goes on from one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.optim import Optimizer

from tandem import distributed
from tandem.record.checkpoint import find_newest_whole, publish, read
from tandem.record.optimizer_state import load_optimizer_state, optimizer_state
from tandem.record.run_record import CHECKPOINTS as FOLDER
from tandem.record.run_record import RunRecord
from tandem.stop import Abandoned, EngineUnavailable
from tandem.training.lightning_hooks import owned
from tandem.training.module import PostTraining

log = logging.getLogger(__name__)


class Checkpoints(Callback):
    """Publishes the weights after every `every`-th iteration and after the last one."""

    def __init__(self, *, record: RunRecord, every: int, keep: int) -> None:
        if every < 1 or keep < 1:
            raise ValueError(
                f"checkpoints.every={every} and checkpoints.keep={keep} are at least 1"
            )
        self.record, self.every, self.keep = record, every, keep
        self.published: int | None = None  # the iterations that led to the last one of this process

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if module.iteration % self.every == 0 or module.iteration == module.plan.iterations:
            self.publish(trainer, module)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self.publish(trainer, module)  # a run may end before its time

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        """Whoever did not answer may be there again, and the run goes on from here; so it does
        where it was told to end and waits for rewards no longer."""
        # With several ranks each may have stopped at another place, and nobody waits for nobody.
        if isinstance(exception, EngineUnavailable | Abandoned) and distributed.world_size() == 1:
            self.publish(trainer, module)
            log.warning("go on with: python train.py resume=%s", self.record.folder)

    def publish(self, trainer: Trainer, module: PostTraining) -> None:
        """All ranks meet here; the first one writes. A step that is there already stays.

        Tensors are whole in it, so any number of ranks may go on.
        """
        start = time.perf_counter()
        numbers, state = optimizer_state(trainer.optimizers[0], module.policy.trainable())
        groups = {"policy": module.policy.weights(), "optimizer": numbers, "module": module.state()}
        whole = {name: assembled(group) for name, group in groups.items()}
        if trainer.is_global_zero:
            self.record.sync()  # a checkpoint counts on the lines before it
            publish(
                self.record.folder / FOLDER,
                module.iteration,
                whole,
                {"iteration": module.iteration, "run": self.record.id, "optimizer": state},
                keep=self.keep,
            )
            self.record.hold({}, {"time/checkpoint": time.perf_counter() - start})
        self.published = module.iteration
        trainer.strategy.barrier("checkpoint")


def assembled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the first rank all of every tensor; elsewhere nothing. Of any shape [...]."""
    found = {name: distributed.gather_on_first(tensor) for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


class Resume(Callback):
    """Puts a run back to its newest whole checkpoint before anything else happens."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        restore(module, trainer.optimizers[0], self.record)
        trainer.strategy.barrier("resume")


def restore(module: PostTraining, optimizer: Optimizer, record: RunRecord) -> int:
    """The iteration a run goes on with: weights, optimiser, memory and record are as at its start.

    Tensors are copied into those that are there, which keeps their alignment, hence the bits of
    what is computed with them. Without a whole checkpoint the run begins again.
    """
    found = find_newest_whole(record.folder / FOLDER)
    for reason in found.skipped:
        log.warning(reason)
    if found.path is not None:
        tensors, state = read(found.path)
        module.policy.load_weights(tensors["policy"])
        names = module.policy.trainable()
        load_optimizer_state(optimizer, names, tensors["optimizer"], state["optimizer"])
        module.load_state(tensors["module"])
    if distributed.rank() == 0:
        record.cut(found.step)
    return found.step


def newest_policy(run_dir: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Of the newest whole checkpoint of a run: the weights of the policy, its state, and the
    iterations that led to it.

    Of any shape [...]. Raises ValueError where there is none.
    """
    found = find_newest_whole(run_dir / FOLDER)
    for reason in found.skipped:
        log.warning(reason)
    if found.path is None:
        raise ValueError(f"{run_dir} holds no whole checkpoint; give the directory of a run")
    tensors = read(found.path)[0]
    return tensors["policy"], owned(tensors["module"], "policy."), found.step
