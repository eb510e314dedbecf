"""Devices of a run: how many there are, which rank has which, and what they compute in.

Previews of a run read this module, so it imports no Lightning.
"""

from __future__ import annotations

import os

import torch
from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, check
from tandem.policies.language.kernels import check_kernels
from tandem.settings.settings import Devices, Settings

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counting GPUs starts no CUDA


def set_float32_precision(devices: Devices) -> None:
    """Compute float32 products in float32, or in TF32 if the configuration allows it: by default
    torch rounds those of convolutions, whatever the setting for matrices."""
    torch.set_float32_matmul_precision(devices.float32_matmul_precision)
    torch.backends.cudnn.allow_tf32 = devices.float32_matmul_precision != "highest"


def tasks_of_srun(devices: Devices) -> int:
    """The number of srun tasks that are ranks of this run; 0 if the run starts its own ranks.

    A single task, or a run with one rank, counts as none: srun may have started many such runs. A
    batch script has all variables of a task but the number of its step.
    """
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    started = "SLURM_STEP_ID" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ
    return tasks if started and tasks > 1 and ranks_of(devices) > 1 else 0


def gpus(devices: Devices) -> int:
    """The number of GPUs available to a run."""
    return torch.cuda.device_count() if devices.accelerator in ("auto", "gpu") else 0


def device_of_rank(devices: Devices, rank: int) -> torch.device:
    """The device of a rank, which is counted on its node."""
    if not (there := gpus(devices)):
        return torch.device("cpu")
    return torch.device("cuda", devices.indices(there)[rank if ranks_of(devices) > 1 else 0])


def describe_device(devices: Devices, rank: int) -> str:
    """The device of a rank in words, with the name of a GPU. Asking for the name starts CUDA."""
    place = device_of_rank(devices, rank)
    if place.type == "cuda":
        return f"{place}, {torch.cuda.get_device_name(place)}"
    if _has_mps(devices):
        return "mps"
    found = "" if devices.accelerator == "cpu" else f": torch {torch.__version__} finds no GPU"
    return f"cpu{found}"


def ranks_of(devices: Devices) -> int:
    """The number of processes of the run."""
    if devices.ranks is not None:
        return devices.ranks
    return devices.num_nodes * max(1, gpus(devices))


def check_accelerator(devices: Devices) -> None:
    """Raise ConfigError for an accelerator that this machine does not have."""
    find = {"gpu": gpus, "mps": _has_mps}.get(devices.accelerator)
    if find is not None and not find(devices):
        raise ConfigError(
            f"trainer.accelerator={devices.accelerator}: torch finds none here; set it to auto "
            "or cpu"
        )


def check_machine(cfg: DictConfig) -> None:
    """Check that the model's kernels run here, unless it is only an estimate."""
    if cfg.estimate:
        return
    own = {name: cfg.model.get(name) for name in ("attn_implementation", "liger", "dtype")}
    try:
        check_kernels(
            own["attn_implementation"],
            liger=bool(own["liger"]),
            float32=own["dtype"] == "float32" and cfg.trainer.precision == "32-true",
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_one_rank(devices: Devices) -> None:
    """Raise ConfigError for more than one process, as the first rank trains a warm start alone."""
    if devices.ranks != 1 or devices.strategy != "auto":  # a group of one would keep others out
        raise ConfigError(
            f"trainer.devices={devices.devices} trainer.num_nodes={devices.num_nodes} "
            f"trainer.strategy={devices.strategy}: the first rank trains it alone on one device; "
            "remove them, or name one: trainer.strategy=auto trainer.devices=[0]"
        )


def check_devices(cfg: DictConfig, settings: Settings) -> None:
    """Check the number of devices against this machine, and the rules of a run with the number that
    is found. Raises ConfigError."""
    devices, there = settings.trainer, gpus(settings.trainer)
    asked, given = ranks_of(devices) // devices.num_nodes, f"trainer.devices={devices.devices}"
    if isinstance(devices.devices, list):
        _refuse_numbers(devices.devices, there or _has_mps(devices), given)
    if there and asked > there:
        raise ConfigError(f"{given}: this machine has {there}; set it to {there} or less, or auto")
    if devices.ranks is None and not settings.evaluate:  # which is one process
        try:
            check(OmegaConf.merge(cfg, {"trainer": {"devices": asked}}))
        except ConfigError as error:
            raise ConfigError(f"{given} is {asked} here: {error}") from error


def _has_mps(devices: Devices) -> bool:
    """Whether the run uses the GPU of a Mac."""
    if devices.accelerator not in ("auto", "mps"):
        return False
    from lightning.pytorch.accelerators import MPSAccelerator

    return MPSAccelerator.is_available()


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
