"""Devices of a run: one, several with replicated weights, or several with sharded weights."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from tandem.config import ConfigError
from tandem.settings.settings import Devices, Settings


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


def set_float32_precision(devices: Devices) -> None:
    """Compute float32 products in float32, or in TF32 if the configuration allows it: by default
    torch rounds those of convolutions, whatever the setting for matrices."""
    torch.set_float32_matmul_precision(devices.float32_matmul_precision)
    torch.backends.cudnn.allow_tf32 = devices.float32_matmul_precision != "highest"


def copies(start: str) -> Callable[[Devices], Strategy]:
    # Buffers are equal on all ranks by construction, and some are on the CPU.
    return lambda devices: DDPStrategy(
        broadcast_buffers=False, start_method=start, timeout=patience(devices)
    )


def parts(devices: Devices) -> Strategy:
    """The sharding strategy. Lightning's default would shard over nodes only, with tensor
    parallelism within a node."""
    return ModelParallelStrategy(
        data_parallel_size=ranks_of(devices), tensor_parallel_size=1, timeout=patience(devices)
    )


def patience(devices: Devices) -> timedelta:
    return timedelta(seconds=devices.timeout)


def by_number(devices: Devices) -> Strategy | str:
    return "auto" if ranks_of(devices) == 1 else copies("popen")(devices)


# Values of trainer.strategy.
STRATEGIES: Mapping[str, Callable[[Devices], Strategy | str]] = {
    "auto": by_number,
    "ddp": copies("popen"),
    "ddp_fork": copies("fork"),
    "fsdp2": parts,
}


def tasks_of_srun(devices: Devices) -> int:
    """The number of srun tasks that are ranks of this run; 0 if the run starts its own ranks.

    A single task, or a run with one rank, counts as none: srun may have started many such runs.
    """
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    started = "SLURM_PROCID" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ
    return tasks if started and tasks > 1 and ranks_of(devices) > 1 else 0


def environment_of(devices: Devices) -> list[ClusterEnvironment]:
    """The Lightning environment for runs that start their own ranks or have only one: otherwise
    Lightning would take processes of a surrounding SLURM job or torchrun for its ranks."""
    if tasks_of_srun(devices):
        return [SLURMEnvironment(auto_requeue=False)]  # SIGUSR1 is handled by Tandem
    ranks = "TORCHELASTIC_RUN_ID" in os.environ and ranks_of(devices) > 1
    return [] if ranks else [LightningEnvironment()]


def gpus(devices: Devices) -> int:
    """The number of GPUs available to a run."""
    asked = devices.accelerator in ("auto", "gpu") and CUDAAccelerator.is_available()
    return CUDAAccelerator.auto_device_count() if asked else 0


def device_of_rank(devices: Devices, rank: int) -> torch.device:
    """The device of a rank, which is counted on its node."""
    if not gpus(devices):
        return torch.device("cpu")
    named, place = devices.devices, rank if ranks_of(devices) > 1 else 0
    return torch.device("cuda", named[place] if isinstance(named, list) else place)


def ranks_of(devices: Devices) -> int:
    """The number of processes of the run."""
    if devices.ranks is not None:
        return devices.ranks
    return devices.num_nodes * max(1, gpus(devices))


def check_devices(settings: Settings) -> None:
    """Check devices against this machine. Raises ConfigError."""
    devices, there = settings.trainer, gpus(settings.trainer)
    asked, given = ranks_of(devices) // devices.num_nodes, f"trainer.devices={devices.devices}"
    has_none = {"gpu": not there, "mps": not MPSAccelerator.is_available()}
    if has_none.get(devices.accelerator):
        raise ConfigError(
            f"trainer.accelerator={devices.accelerator}: torch finds none here; set it to auto "
            "or cpu"
        )
    if isinstance(devices.devices, list):
        _refuse_numbers(devices.devices, there or _has_mps(devices), given)
    if there and asked > there:
        raise ConfigError(f"{given}: this machine has {there}; set it to {there} or less, or auto")
    if devices.strategy == "fsdp2" and ranks_of(devices) == 1:
        raise ConfigError(
            f"{given} is one rank here, but trainer.strategy=fsdp2 shards weights over ranks; use "
            "2 or more, or set trainer=auto"
        )
    if (ranks := ranks_of(devices)) > settings.prompts_per_step:
        raise ConfigError(
            f"{given} means {ranks} ranks, and each needs at least one prompt; set "
            f"prompts_per_step={ranks} or more"
        )


def _has_mps(devices: Devices) -> bool:
    """Whether the run uses the GPU of a Mac."""
    return devices.accelerator in ("auto", "mps") and MPSAccelerator.is_available()


def _refuse_numbers(numbers: list[int], there: int, given: str) -> None:
    """Raise for a GPU number that does not exist, or for any number without GPUs."""
    if not there:
        raise ConfigError(
            f"{given} lists GPUs, but the run is on the CPU; give the number of processes, "
            f"trainer.devices={len(numbers)}"
        )
    if strange := [n for n in numbers if n >= there]:
        raise ConfigError(
            f"{given}: there is no GPU {strange[0]} here; give the number of GPUs, or auto"
        )


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
