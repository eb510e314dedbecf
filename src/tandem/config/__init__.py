"""Configuration: Hydra composes it, `check` validates it and `build` makes objects, once each.

Composing imports no heavy library, so that a misspelt word is reported at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from tandem.config.building import build
from tandem.config.composition import compose
from tandem.config.names import ConfigError
from tandem.config.resume import configuration, resume_config

if TYPE_CHECKING:
    from tandem.settings.settings import Settings

__all__ = ["ConfigError", "build", "check", "compose", "configuration", "resume_config"]


def check(cfg: DictConfig) -> Settings:
    """The typed settings of a configuration in which every call binds and no rule is broken."""
    from tandem.config.checks import (
        check_config,  # imports the modules that the targets live in: torch
    )

    return check_config(cfg)
