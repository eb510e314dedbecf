"""Registered functions as options: their nodes in Hydra's store, updated before composing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedValueType

from tandem.config.names import ConfigError
from tandem.config.plugins import ADMITTED
from tandem.config.taken_names import is_taken
from tandem.contracts import REGISTERED, Registrar, is_foreign, place, registration
from tandem.contracts.parts import locate_source
from tandem.registry import declared
from tandem.registry.nodes import PLACED_IN, Node, dynamics_of, groups_offering, node_of

REGISTRARS = {one.group: one for one in vars(registration).values() if isinstance(one, Registrar)}
NOTEBOOK = "__main__"  # or a script: it registers options of the user, like a plugin


def list_own_options() -> Mapping[tuple[str, str], Callable]:
    """The registered options that are not part of the package."""
    return {key: component for key, component in REGISTERED.items() if is_foreign(component)}


def store_options(folder: Path) -> None:
    """Store the options registered so far in Hydra's store. `folder` is conf/ with built-in names.

    Raises ConfigError for a built-in name, and for a default that YAML cannot represent.
    """
    _store_declared(folder)
    for (group, name), component in list_own_options().items():
        node = _make_node(group, name, component)
        if component.__module__ == NOTEBOOK:
            ADMITTED.add(NOTEBOOK)
        for offered in groups_offering(group):
            _refuse_taken(offered, name, component)
            _store(offered, name, _hold(node, component))
        if (steps := dynamics_of(group, component)) is not None:
            ConfigStore.instance().store(group="dynamics/_of", name=name, node=steps)


@functools.cache
def _store_declared(folder: Path) -> None:
    """Store the built-in options, except those with a file of their own."""
    for (group, name), option in declared.options().items():
        if not (folder / group / f"{name}.yaml").is_file():
            _store(group, name, option.node)


def _store(group: str, name: str, node: object) -> None:
    package = PLACED_IN.get(group)
    ConfigStore.instance().store(group=group, name=name, node=node, package=package)


def _hold(node: Node, component: Callable) -> object:
    try:
        return OmegaConf.create(node)
    except UnsupportedValueType as error:
        reason = str(error).splitlines()[0]
        said = f"{place(component)}: YAML cannot represent a default: {reason}"
        raise ConfigError(f"{_line(component)}: {said}") from None


def _refuse_taken(group: str, name: str, component: Callable) -> None:
    if is_taken(group, name):
        taken = f"{group}={name} is an option of Tandem's; register another name"
        raise ConfigError(f"{_line(component)}: {taken}")


def _make_node(group: str, name: str, component: Callable) -> Node:
    try:
        REGISTRARS[group].refuse_uncallable(component)
        return node_of(group, name, component)
    except ValueError as error:
        raise ConfigError(f"{_line(component)}: {error}") from None


def _line(component: Callable) -> str:
    """The file and line of a component."""
    file, line = locate_source(component)
    return f"{file}, line {line}"
