"""Functions of the user's own as options of the configuration.

A decorator puts a function into Hydra's store when its module is imported, which `plugins=[module]`
does before composing. What stands in its signature with a default is its configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar, overload

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedValueType

from tandem.config.composition import conf_folder

Component = TypeVar("Component", bound=Callable)
Node = dict[str, Any]

# (group, option) -> the function that was registered as it, in order.
REGISTERED: dict[tuple[str, str], Callable] = {}


@overload
def register_reward(function: Component) -> Component: ...
@overload
def register_reward(function: str) -> Callable[[Component], Component]: ...
def register_reward(function: Component | str) -> Component | Callable[[Component], Component]:
    """`@register_reward` or `@register_reward("name")` above `def reward(output, prompt, *, ...)`.

    Then `reward=name` chooses it, and `reward.name.function.alpha=2` sets its keyword `alpha`.
    """
    return register("reward", reward_node)(function)


def register(group: str, node: Callable[[str, Node], Node]) -> Callable:
    """A decorator for options of `group`; `node` makes the YAML of its name and the bound call."""

    def decorate(function: Component | str) -> Component | Callable[[Component], Component]:
        if isinstance(function, str):
            return lambda named: _store(group, function, named, node)
        return _store(group, function.__name__, function, node)

    return decorate


def component_node(name: str, call: Node) -> Node:
    """The node is the function itself, as in the groups of losses and advantages."""
    return call


def reward_node(name: str, call: Node) -> Node:
    """As in conf/reward: one key, so that a list of options merges."""
    reward = {"_target_": "tandem.rewards.Reward", "function": call}
    return {name: {**reward, "weight": 1.0, "batch_size": None, "timeout": None}}


def bound_call(function: Callable) -> Node:
    """The partial call of a function with its defaults; `???` where a keyword has none."""
    if "." in function.__qualname__:
        raise ValueError(f"{_place(function)}: only a function at the top of a module has a name")
    call: Node = {"_target_": _place(function), "_partial_": True}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not Parameter.empty:
            call[parameter.name] = parameter.default
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            call[parameter.name] = "???"
    return call


def _store(group: str, name: str, function: Component, node: Callable) -> Component:
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
    ConfigStore.instance().store(group=group, name=name, node=content)
    REGISTERED[group, name] = function
    return function


def _place(function: Callable) -> str:
    return f"{function.__module__}.{function.__qualname__}"
