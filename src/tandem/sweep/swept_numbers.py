"""Swept interpolations (`${learning_rate:low}`), resolved to the number of each run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tandem.config.composition import compose
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.config.plain import shorten_reason


def replace_words(shared: Sequence[str], own: Sequence[str]) -> list[str]:
    """The overrides of one run, with interpolations resolved.

    The values are those that the run itself would compose, so folders and tables show the numbers
    that were used. Overrides that do not resolve stay as they are, and the run refuses them.
    """
    asked = {line: part for line, part in zip(own, parse(own), strict=True) if is_open(part)}
    if not asked:
        return list(own)
    try:
        cfg = _compose([*shared, *(line for line in own if line not in asked)])
        for part in asked.values():
            OmegaConf.update(cfg, part.key_or_group, part.value(), force_add=True)
        return [_to_number(asked[line], cfg) if line in asked else line for line in own]
    except (ConfigError, OmegaConfBaseException):
        return list(own)


def explain_no_number(row: Sequence[str]) -> str | None:
    """Why an interpolation in a command line does not resolve; None: it does, or the rest is
    invalid."""
    words = {part.input_line: part for part in parse(row) if is_open(part)}
    try:
        cfg = _compose([line for line in row if line not in words])
    except ConfigError:
        return None
    for part in words.values():
        OmegaConf.update(cfg, part.key_or_group, part.value(), force_add=True)
    for part in reversed(words.values()):  # swept keys come last, and other keys may read them
        try:
            OmegaConf.select(cfg, part.key_or_group)
        except OmegaConfBaseException as error:
            return f"{part.key_or_group}: {shorten_reason(error)}"
    return None


def _compose(overrides: Sequence[str]) -> DictConfig:
    """The configuration, composed once for all seeds: a seed changes only its own key."""
    parts = parse(overrides)
    seeds = [part.value() for part in parts if is_seed(part)]
    cfg = copy.deepcopy(_settle(tuple(p.input_line for p in parts if not is_seed(p))))
    if seeds:
        cfg.seed = seeds[-1]
    return cfg


@functools.lru_cache(maxsize=64)
def _settle(overrides: tuple[str, ...]) -> DictConfig:
    return compose(overrides)


def is_seed(part: Override) -> bool:
    return part.key_or_group == "seed" and not part.is_delete()


def is_open(part: Override) -> bool:
    """Whether the value is an interpolation."""
    value = None if part.is_delete() or part.is_sweep_override() else part.value()
    return isinstance(value, str) and "${" in value


def _to_number(part: Override, cfg: DictConfig) -> str:
    return f"{part.get_key_element()}={OmegaConf.select(cfg, part.key_or_group)}"
