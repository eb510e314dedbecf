"""Ranks of a run started by torchrun or srun, before they can communicate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from tandem import distributed
from tandem.config import ConfigError
from tandem.launch.devices import ranks_of, tasks_of_srun
from tandem.settings.settings import Devices

NUMBERED = {"RANK", "NODE_RANK"}  # set by torchrun, or by a script on each node
# Set by torchrun and other launchers of one process per rank; Lightning sets no RANK.
PLACED = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
PAUSE = 0.2  # seconds between two checks for the work of the first rank


def join_ranks(devices: Devices, *, evaluates: bool = False) -> None:
    """Set torch's environment variables for a process of srun.

    Raises:
        ConfigError: numbers of processes and ranks differ, or several processes would each
            evaluate the run and write the same files.
    """
    if tasks := tasks_of_srun(devices):
        number_tasks(devices, tasks)
    if not {*os.environ} >= PLACED:
        if os.environ.get("WORLD_SIZE") == "1":  # machine: the ranks that it starts inherit RANK
            os.environ.pop("RANK", None)
        return
    together = int(os.environ["WORLD_SIZE"])
    if together > 1 and evaluates:
        raise ConfigError(
            f"evaluate=true is one process on one device, but {together} were started; leave "
            "torchrun or srun out"
        )
    if together != ranks_of(devices) and not evaluates:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", together))
        raise ConfigError(
            f"{together} processes were started, but trainer.devices={devices.devices} and "
            f"trainer.num_nodes={devices.num_nodes} mean {ranks_of(devices)} ranks; set "
            f"trainer=ddp or fsdp2, trainer.devices={local} and "
            f"trainer.num_nodes={together // local}, or leave torchrun out"
        )


def number_tasks(devices: Devices, tasks: int) -> None:
    """Give a task of srun the variables that torchrun would set. Raises ConfigError for flags of
    srun that do not fit the run."""
    if tasks != ranks_of(devices):
        raise ConfigError(
            f"srun started {tasks} tasks, but trainer.devices={devices.devices} and "
            f"trainer.num_nodes={devices.num_nodes} mean {ranks_of(devices)} ranks; set "
            "srun --ntasks-per-node to trainer.devices, or start one task"
        )
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise ConfigError(
            f"srun --ntasks={tasks}: write --ntasks-per-node={tasks // devices.num_nodes}, as "
            "Lightning must know which tasks share a node"
        )
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["WORLD_SIZE"] = str(tasks)


def check_run_dir(devices: Devices, run_dir: Path, overrides: Sequence[str]) -> None:
    """Raise ConfigError if the processes of a run would each name its directory by their own clock.

    Lightning passes the directory of a Hydra job to the ranks that it starts, and nothing else: a
    script that calls `tandem.train` is run again by each rank.
    """
    job = HydraConfig.get() if HydraConfig.initialized() else None
    passed = job is not None and Path(job.runtime.output_dir) == run_dir
    apart = devices.num_nodes > 1 or {*os.environ} >= PLACED or not passed
    named = any(word.lstrip("+").startswith(("run_dir=", "resume=")) for word in overrides)
    if ranks_of(devices) > 1 and apart and not named:
        raise ConfigError(
            f"run_dir: each of the {ranks_of(devices)} processes of this run would name its "
            "directory by its own clock; set one that all of them can access: run_dir=runs/NAME"
        )


def check_nodes(devices: Devices) -> None:
    """Raise ConfigError if nothing starts the other nodes of a run in a SLURM job."""
    started = tasks_of_srun(devices) or NUMBERED & {*os.environ}
    if devices.num_nodes > 1 and "SLURM_JOB_ID" in os.environ and not started:
        raise ConfigError(
            f"trainer.num_nodes={devices.num_nodes}: in a SLURM job a task per rank is started by "
            f"srun --ntasks-per-node={ranks_of(devices) // devices.num_nodes}, or torchrun on each "
            "node; this process alone would wait for the other nodes"
        )


def make_on_first(place: Path, make: Callable[[], None], *, patience: float | None) -> None:
    """Call `make` on the first rank; the others wait until `place` exists.

    patience: seconds without a change of any path that starts with the name of `place`.
    Raises ConfigError then.
    """
    if distributed.is_first():
        make()
        return
    seen, since = 0.0, time.monotonic()
    while not place.exists():
        newest = max(
            (last_modified(path) for path in place.parent.glob(f"{place.name}*/*")), default=0.0
        )
        if newest > seen:
            seen, since = newest, time.monotonic()
        if patience is not None and time.monotonic() - since > patience:
            raise ConfigError(
                f"{place}: the first rank did not write it within {patience:g} s "
                "(guards.stalled_after); read its log, and check that all ranks share one cache_dir"
            )
        time.sleep(PAUSE)


def last_modified(path: Path) -> float:
    """Time of the last change in seconds; 0 if the path was just renamed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
