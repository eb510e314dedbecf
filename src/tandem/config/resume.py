"""The configuration of a run that goes on: the one it started with, but for what may change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tandem.config.composition import compose
from tandem.config.names import ConfigError, unknown
from tandem.config.overrides import dotted, parse
from tandem.config.plugins import load_plugins
from tandem.settings import KEYS, key_of

# Where somebody else is asked, and how patiently: a server may have moved since.
ELSEWHERE = re.compile(
    r"(reward|rollout)(\.\w+)*\.((limits|retries|breaker)(\.\w+)?|(url|token_env|api_key_env"
    r"|concurrency|engine\.(folder|model|timeout|patience|sleeps)))"
)


def configuration(overrides: Sequence[str]) -> DictConfig:
    """What a command line asks for: a run of its own, or one that goes on."""
    for part in parse(overrides):
        if part.key_or_group == "sweep" and not part.is_delete():
            text = part.input_line
            raise ConfigError(f"{text} means many runs; python train.py {text} starts them")
    folder = resumes(overrides)
    return compose(overrides) if folder is None else resumed(folder, overrides)


def resumes(overrides: Sequence[str]) -> Path | None:
    """The run directory that `resume=` names."""
    named = [part.value() for part in parse(overrides) if part.key_or_group == "resume"]
    return Path(str(named[-1])) if named and named[-1] is not None else None


def resumed(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration in a run directory, with the overrides that may be given beside it."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"resume={folder}: there is no config.yaml in it; give a run directory")
    cfg = OmegaConf.load(path)
    load_plugins(list(cfg.plugins))
    for override in parse(overrides):
        _apply(cfg, override)
    cfg.resume = cfg.run_dir = str(folder)
    return cfg


def _apply(cfg: DictConfig, override: Override) -> None:
    key, text = override.key_or_group, override.input_line
    top = re.split("[./]", key)[0]
    if top in ("hydra", "resume", "run_dir"):
        return
    may_change = key_of(key).resumable or ELSEWHERE.fullmatch(key) is not None
    if not may_change or override.is_delete() or override.is_sweep_override():
        raise ConfigError(f"{text}: a run that is resumed keeps it; only {_listed()} may change")
    if key in cfg.choices and not isinstance(override.value(), dict):
        cfg[key] = compose([text])[key]
        return
    if key not in (keys := dotted(cfg)):
        raise ConfigError(unknown("key", key, keys))
    try:
        OmegaConf.update(cfg, key, override.value(), merge=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{text}: {str(error).splitlines()[0]}") from error


def _listed() -> str:
    may_change = [name for name, key in KEYS.items() if key.resumable and "." not in name]
    return f"{', '.join(may_change)}, and where a server is asked"
