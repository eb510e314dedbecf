"""Inputs of a run, read and judged before anything heavy is imported or any weight is loaded."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from tandem.config import ConfigError, build
from tandem.config.plain import iterate_leaves, to_plain
from tandem.config.targets import resolve
from tandem.contracts import facts_of
from tandem.data import Data
from tandem.record.terminal import starting

HERE = (".", "/", "~")  # how a path that is no name on the hub begins


def read_inputs(cfg: DictConfig) -> Data | None:
    """The prompts; None: a dry run downloads none.

    Raises ConfigError for data, rewards and folders that cannot be used.
    """
    check_places(cfg)
    try:
        for node in cfg.reward.values():
            if "path" not in node.function:  # making one of a network loads it
                build(node)
        if cfg.dry_run and must_be_downloaded(cfg):
            return None
        with starting(f"data={cfg.choices.data}"):
            return build(cfg.data)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def must_be_downloaded(cfg: DictConfig) -> bool:
    """Whether the data, or a part of a mixture, comes from a hub."""
    named = [str(value) for key, value in iterate_leaves(cfg.data) if key.endswith("_target_")]
    return any(facts_of(resolve(target, "data")).downloads for target in named)


def check_places(cfg: DictConfig) -> None:
    """Models and networks of rewards that are folders are there."""
    for group in ("model", "reward"):
        for key, value in iterate_leaves(to_plain(cfg[group])):
            own = key.rpartition(".")[2] == "path" and str(value).startswith(HERE)
            if own and not (place := Path(value).expanduser().absolute()).exists():
                raise ConfigError(f"{group}.{key}={value}: there is no {place}")
