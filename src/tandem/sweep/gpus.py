"""Devices of runs that share a machine: each has GPUs, and ranks, of its own."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tandem.processes import is_private, read_own_mode
from tandem.sweep.locks import try_lock

# With these a run would be one rank of several, and wait for others that never come.
OF_TASK = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID")
VISIBLE = "CUDA_VISIBLE_DEVICES"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The devices of a run: variables for its process, and lock files that it holds to its end."""

    environment: Mapping[str, str]
    held: tuple[IO, ...]


@contextmanager
def share(number: int, wanted: int | None) -> Iterator[Share]:
    """`wanted` GPUs that no other run holds; if too few are free, or locks are not safe, GPUs in
    turn by run `number`.

    Nothing is assigned if a run wants all visible GPUs, as on a machine with one GPU or after an
    assignment by SLURM or Ray. `wanted`: None for all of them.
    """
    seen = visible() if wanted else []
    if not wanted or len(seen) <= wanted:
        yield Share(environment={}, held=())
        return
    with ExitStack() as stack:
        free = _free(seen, wanted, stack)
        turn = [seen[(number * wanted + i) % len(seen)] for i in range(wanted)]
        chosen = list(free) if len(free) == wanted else turn
        held = tuple(free.values()) if len(free) == wanted else ()
        yield Share(environment={VISIBLE: ",".join(chosen)}, held=held)


def leave_tasks() -> dict[str, str]:
    """The environment for a process that is not one of srun's tasks, as this one may be."""
    return {name: value for name, value in os.environ.items() if name not in OF_TASK}


def visible() -> list[str]:
    """GPU names in CUDA_VISIBLE_DEVICES, or all that the driver reports if it is not set."""
    if VISIBLE in os.environ:
        return [name for name in os.environ[VISIBLE].split(",") if name]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.split()


def _free(seen: list[str], wanted: int, stack: ExitStack) -> dict[str, IO]:
    """GPUs that are free, with their locked files; {} in a folder where another user could have
    put links to other files."""
    folder = Path(tempfile.gettempdir()) / f"tandem-gpus-{os.getuid()}"
    _close_own(folder)
    if not is_private(folder):
        _warn_of_turns(folder)
        return {}
    found: dict[str, IO] = {}
    for name in seen:
        file = stack.enter_context((folder / re.sub(r"[^\w-]", "_", name)).open("a"))
        if len(found) < wanted and try_lock(file, without_locks=False):
            found[name] = file
    return found


def _close_own(folder: Path) -> None:
    """Close a folder to others that this user made open, if nobody else could write to it."""
    mode = read_own_mode(folder) if folder.exists() else None
    if mode is not None and not mode & 0o022:
        folder.chmod(0o700)


@cache
def _warn_of_turns(folder: Path) -> None:
    """Warn, once in a process."""
    log.warning(
        "%s is not private to you (mode 700), so runs take GPUs in turn, even those that another "
        "run holds; remove it, or set TMPDIR to another folder",
        folder,
    )
