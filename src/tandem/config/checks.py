"""All that can be known to be wrong before a weight is loaded, said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from tandem.config.binding import bind, bind_call
from tandem.config.building import make
from tandem.config.names import ConfigError
from tandem.config.plain import leaves, plain
from tandem.config.rules import RULES, Composed
from tandem.config.settings import COMPONENTS, Settings


def checked(cfg: DictConfig) -> Settings:
    """The settings of a configuration in which every call binds and no rule is broken."""
    _refuse_secrets(cfg)
    config = plain(cfg)
    composed = Composed(
        settings=settings(config),
        components={group: _bound(config[group], group) for group in COMPONENTS},
    )
    for rule in RULES:
        if (broken := rule(composed)) is not None:
            raise ConfigError(broken)
    return composed.settings


def settings(config: Mapping[str, Any]) -> Settings:
    """The typed top level of a plain configuration."""
    for group in COMPONENTS:
        if group not in config:
            raise ConfigError(f"{group} is missing: choose one of the options of conf/{group}")
    given = {name: value for name, value in config.items() if name not in COMPONENTS}
    bound = bind_call(Settings, given, "", partial=False)
    try:
        return make(bound)
    except ValueError as error:  # a record that judges its own numbers
        raise ConfigError(str(error)) from error


def _bound(node: Any, where: str) -> Any:
    """The call of a node, or the calls of a mapping of nodes."""
    if isinstance(node, Mapping) and "_target_" in node:
        return bind(node, where)
    if isinstance(node, Mapping) and not where.count("."):
        return {name: _bound(part, f"{where}.{name}") for name, part in node.items()}
    raise ConfigError(f"{where}: expected a node with _target_, as the options of its group have")


def _refuse_secrets(cfg: DictConfig) -> None:
    """A run's record holds its configuration resolved, so the environment must stay out of it."""
    for key, value in leaves(cfg):
        if isinstance(value, str) and "${oc.env:" in value.replace("${oc.env:PROJECT_ROOT}", ""):
            raise ConfigError(f"{key}: only PROJECT_ROOT may be read from the environment")
