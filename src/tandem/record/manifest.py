"""What a run was made with: code, packages, hardware, seed and command line, without any secret."""

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
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = (
    *("tandem", "torch", "lightning", "hydra-core", "omegaconf", "transformers", "diffusers"),
    *("peft", "safetensors", "wandb", "numpy"),
)
REDACTED = "<redacted>"  # a plain scalar in YAML too
SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
SHORTEST_SECRET = 8  # TOKENIZERS_PARALLELISM=false names no secret, and "false" is everywhere
URL_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
# What holds a secret whatever the environment says; num_tokens, pad_token, use_cls_token do not.
NAME = (
    r"[\w.-]*(?:(?:api|access|secret|private)[_-]?key|(?:auth|access|api|hf)[_-]?token"
    r"|secret|password|passwd|credentials)|(?:[\w.-]*\.)?token"
)
OPTIONS = (
    re.compile(rf"(?P<name>(?<![\w.-])(?:{NAME})=['\"]?)(?P<value>[^\s'\"&]+)", re.I),  # name=value
    re.compile(rf"(?P<name>--(?:{NAME})\s+['\"]?)(?P<value>[^\s'\"]+)", re.I),  # --name value
    re.compile(
        rf"(?P<name>[{{,]\s*(?:{NAME})\s*:\s*)(?P<value>[^\s,}}]+)", re.I
    ),  # {{name: value}}
    re.compile(rf"(?P<name>^\s*(?:- )?(?:{NAME}): )(?P<value>.+)$", re.I | re.M),  # a line of YAML
)


def new_manifest(seed: int) -> dict:
    """What stays the same over restarts; each start adds itself to `starts`."""
    return {"id": uuid.uuid4().hex[:8], "seed": seed, "starts": []}


def start(command: Sequence[str]) -> dict:
    """What may differ from one start of a run to the next."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": scrub(shlex.join(command), os.environ),
        "code": _code(),
        "packages": _versions(),
        "python": platform.python_version(),
        "hardware": _hardware(),
    }


def scrub(text: str, environment: Mapping[str, str]) -> str:
    """Replace values of secret-looking variables, of secret-looking options, and users in URLs."""
    for name, value in sorted(environment.items(), key=lambda item: -len(item[1])):
        is_place = os.path.exists(value)  # HF_TOKEN_PATH=/home/me hides no secret, but breaks paths
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET and not is_place:
            text = text.replace(value, REDACTED)
    text = URL_USER.sub(REDACTED, text)
    for option in OPTIONS:
        text = option.sub(lambda found: found["name"] + _hidden(found["value"]), text)
    return text


def _hidden(value: str) -> str:
    """A reference to where the secret is, or nothing at all, is none itself."""
    return value if value in ("null", "None", "???") or value.startswith("$") else REDACTED


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
    """What git prints; None if there is no git, no repository, or it says no."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache  # hundreds of files are read for it
def _versions() -> dict[str, str]:
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def _hardware() -> dict:
    import torch  # what only scrubs a text takes no second for it

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
