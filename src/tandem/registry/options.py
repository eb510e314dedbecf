"""A function as an option of a group: its node, made of its signature, in Hydra's store."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedValueType

from tandem.config.composition import conf_folder
from tandem.config.plugins import ADMITTED

Node = dict[str, Any]
NOTEBOOK = "__main__"  # or a script: what it registers is the user's own, as that of a plugin is

# (group, option) -> the function that was registered as it, in order.
REGISTERED: dict[tuple[str, str], Callable] = {}


def register(
    group: str,
    node: Callable[[str, Node], Node],
    form: Callable[[Callable], Callable] = lambda function: function,
) -> Callable:
    """A decorator for options of `group`; `node` makes the YAML of its name and the bound call.

    `form` gives the function in the form that the group calls, or raises.
    """

    def decorate(function: Callable | str) -> Callable:
        if isinstance(function, str):
            return lambda named: _store(group, function, form(named), node)
        return _store(group, function.__name__, form(function), node)

    return decorate


def bound_call(function: Callable) -> Node:
    """The partial call of a function with its defaults; `???` where a keyword has none.

    What `**numbers` would take has no default to show: `+algorithm.loss.alpha=2` adds it.
    """
    if "." in function.__qualname__:
        raise ValueError(f"{_place(function)}: only a function at the top of a module has a name")
    call: Node = {"_target_": _place(function), "_partial_": True}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not Parameter.empty:
            call[parameter.name] = parameter.default
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            call[parameter.name] = "???"
    return call


def _store(group: str, name: str, function: Callable, node: Callable) -> Callable:
    if (conf_folder() / group / f"{name}.yaml").is_file():  # Hydra would merge the two
        raise ValueError(f"{group}={name} is an option of Tandem's; register another name")
    before = REGISTERED.get((group, name), function)
    if _place(before) != _place(function):  # the same place: a notebook ran its cell again
        raise ValueError(f"{group}={name} is {_place(before)} already, not {_place(function)}")
    try:
        content = OmegaConf.create(node(name, bound_call(function)))
    except UnsupportedValueType as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{_place(function)}: no YAML can hold a default: {reason}") from None
    if function.__module__ == NOTEBOOK:
        ADMITTED.add(NOTEBOOK)
    ConfigStore.instance().store(group=group, name=name, node=content)
    REGISTERED[group, name] = function
    return function


def _place(function: Callable) -> str:
    return f"{function.__module__}.{function.__qualname__}"
