"""The weights a run starts from: those of another run, of a warm start, or the model's own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, compose
from tandem.config.overrides import parse

# What a warm start shares with the run it is for; everything else of it is its own.
SHARED = ("data", "model", "plugins", "rollout", "seed")
# What leaves no trace in the weights.
TRACELESS = ("cache_dir", "callbacks", "checkpoints", "choices", "evaluation", "logger", "run_dir")

Train = Callable[[DictConfig, Path, Sequence[str]], Any]


def starting_weights(cfg: DictConfig, overrides: Sequence[str], train: Train) -> Path | None:
    """A folder in Hugging Face format; None: what `model` itself names."""
    if cfg.continue_from is not None:
        return finished_model(Path(cfg.continue_from))
    if cfg.warm_start is None:
        return None
    return warm_start(cfg, overrides, train) / "model"


def finished_model(run_dir: Path) -> Path:
    """The model at the end of a run."""
    folder = run_dir / "model"
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"continue_from={run_dir}: there is no model/ in it; give the directory of a finished "
            "run, or finish it first with resume="
        )
    return folder


def warm_start(cfg: DictConfig, overrides: Sequence[str], train: Train) -> Path:
    """The directory of the warm start's own run, trained now or found under its content hash."""
    alone = ("warm_start=null", "evaluation.every=null")  # the run it is for evaluates it
    start = compose([*shared(overrides), *cfg.warm_start, *alone])
    folder = Path(cfg.cache_dir) / "warm_start" / content_hash(start)
    if folder.is_dir():
        print(f"warm start  {folder}, there already")
        return folder
    print(f"warm start  {' '.join(cfg.warm_start)}, kept for the next time in {folder}")
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    train(start, unfinished, shared(overrides))
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster with the same weights
            raise
        shutil.rmtree(unfinished)
    return folder


def shared(overrides: Sequence[str]) -> list[str]:
    """The overrides that a warm start takes over from the run it is for."""
    return [
        part.input_line
        for part in parse(overrides)
        if part.key_or_group.lstrip("+~").split(".")[0].split("/")[0] in SHARED
    ]


def content_hash(cfg: DictConfig) -> str:
    """Of all that decides what weights come out: configuration, this package, torch's version."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    decisive = {name: value for name, value in plain.items() if name not in TRACELESS}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    digest.update(torch.__version__.encode())
    package = Path(__file__).parent
    for source in sorted(package.rglob("*.py")):
        digest.update(str(source.relative_to(package)).encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
