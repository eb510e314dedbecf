"""The manifest of a run: code, packages, hardware, seed and command line, without any secret."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from tandem.record.secrets import scrub_words

PACKAGES = (
    *("tandem", "torch", "lightning", "hydra-core", "omegaconf", "transformers", "diffusers"),
    *("peft", "safetensors", "wandb", "numpy"),
)


def new_manifest(seed: int) -> dict:
    """The part that stays the same over restarts; each start adds itself to `starts`."""
    return {"id": uuid.uuid4().hex[:8], "seed": seed, "starts": []}


def start(
    command: Sequence[str],
    plugins: Iterable[tuple[str, str]] = (),
    *,
    reproducible: bool = True,
) -> dict:
    """The part that may differ from one start of a run to the next.

    `plugins`: the name and the sha256 of each. Only a start that is not `reproducible` says so.
    """
    known = {} if reproducible else {"reproducible": False}
    return known | {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(scrub_words(command, os.environ)),
        "code": _code() | {"plugins": dict(plugins)},
        "packages": _versions(),
        "python": platform.python_version(),
        "hardware": _hardware(),
    }


def _code() -> dict:
    """The commit of the checkout that tracks this file; null if it was installed elsewhere."""
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    if tracked is None:
        return {"commit": None, "dirty": None}
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str | None:
    """The output of git; None if there is no git or no repository, or it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def _versions() -> dict[str, str]:
    """Versions of installed PACKAGES, looked up by name: a full scan reads hundreds of files."""
    return {name: found.version for name in PACKAGES for found in metadata.distributions(name=name)}


def _hardware() -> dict:
    import torch  # here, as it takes a second that callers of other functions save

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(pages / 2**30, 1),
        "gpus": gpus,
    }


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    if sys.platform != "linux" or not facts.exists():
        return platform.processor()
    models = re.findall(r"^model name\s*:\s*(.+)$", facts.read_text(), re.MULTILINE)
    return models[0] if models else platform.processor()
