"""What is swept in words of the configuration, `${learning_rate:low}`, as a number of each run."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tandem.config.composition import compose
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.config.plain import reason_of

ASKED = "asked_of_a_sweep"  # a key beside all others, for as long as it takes to read it


def numbered(shared: Sequence[str], own: Sequence[str]) -> list[str]:
    """The lines that set one run apart, with numbers in place of words.

    They are those of this run's own model, algorithm and dynamics, so that folders and tables are
    named by what was really set. Raises ConfigError where such a number makes no sense.
    """
    asked = {line: part for line, part in zip(own, parse(own), strict=True) if is_open(part)}
    if not asked:
        return list(own)
    others = [*shared, *(line for line in own if line not in asked)]
    cfg = _settled(tuple(p.input_line for p in parse(others) if not (is_open(p) or is_seed(p))))
    return [
        f"{asked[x].get_key_element()}={_number(asked[x], cfg)}" if x in asked else x for x in own
    ]


@functools.lru_cache(maxsize=64)
def _settled(overrides: tuple[str, ...]) -> DictConfig:
    """Once for all seeds of a variant."""
    return compose(overrides)


def is_seed(part: Override) -> bool:
    return part.key_or_group == "seed"


def is_open(part: Override) -> bool:
    """Whether its value is left to the rest of the configuration."""
    value = None if part.is_delete() or part.is_sweep_override() else part.value()
    return isinstance(value, str) and "${" in value


def _number(part: Override, cfg: DictConfig) -> object:
    with open_dict(cfg):
        cfg[ASKED] = part.value()
    try:
        return OmegaConf.select(cfg, ASKED)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{part.key_or_group}: {reason_of(error)}") from error
