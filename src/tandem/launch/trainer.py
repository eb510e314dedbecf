"""The Lightning trainer of a run: its strategy, and the environment that its ranks come from."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from tandem.launch.devices import ranks_of, tasks_of_srun
from tandem.settings.settings import Devices


def trainer_for(devices: Devices, callbacks: list[Callback]) -> Trainer:
    """The Lightning trainer, which moves the module to its devices and calls its step. Precision is
    set in the policy instead: Lightning's setting would also apply to rewards and advantages."""
    quiet_lightning()
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.devices,
        num_nodes=devices.num_nodes,
        strategy=STRATEGIES[devices.strategy](devices),
        max_epochs=1,
        callbacks=callbacks,
        plugins=environment_of(devices),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def copies(devices: Devices) -> Strategy:
    """Each rank is a process of its own command. Ranks forked by Lightning (`ddp_fork`) end without
    calling `on_exception`, so without the checkpoint and the message of a run that fails."""
    # Buffers are equal on all ranks by construction, and some are on the CPU.
    return DDPStrategy(broadcast_buffers=False, timeout=patience(devices))


def parts(devices: Devices) -> Strategy:
    """The sharding strategy. Lightning's default would shard over nodes only, with tensor
    parallelism within a node."""
    return ModelParallelStrategy(
        data_parallel_size=ranks_of(devices), tensor_parallel_size=1, timeout=patience(devices)
    )


def patience(devices: Devices) -> timedelta:
    return timedelta(seconds=devices.timeout)


def by_number(devices: Devices) -> Strategy | str:
    return "auto" if ranks_of(devices) == 1 else copies(devices)


# Values of trainer.strategy.
STRATEGIES: Mapping[str, Callable[[Devices], Strategy | str]] = {
    "auto": by_number,
    "ddp": copies,
    "fsdp2": parts,
}


def environment_of(devices: Devices) -> list[ClusterEnvironment]:
    """The Lightning environment for runs that start their own ranks or have only one: otherwise
    Lightning would take processes of a surrounding SLURM job or torchrun for its ranks."""
    if tasks_of_srun(devices):
        return [SLURMEnvironment(auto_requeue=False)]  # SIGUSR1 is handled by Tandem
    ranks = "TORCHELASTIC_RUN_ID" in os.environ and ranks_of(devices) > 1
    return [] if ranks else [LightningEnvironment()]


def quiet_lightning() -> None:
    """Silence messages of Lightning that are known or intended for every run of Tandem."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for known in (
        r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # its own
        r"Found \d+ module\(s\) in eval mode",  # no dropout: the policy that samples is trained
        r"`broadcast_buffers` is deprecated",  # the new name is missing in torch 2.11
        r"The `srun` command is available",
        r"Total length of `.*` across ranks is zero",  # a finished run that is resumed
    ):
        warnings.filterwarnings("ignore", message=known)
