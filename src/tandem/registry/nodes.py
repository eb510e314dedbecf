"""Configuration nodes of registered options, made from signatures instead of files in conf/."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from tandem.contracts import facts_of, place, unwrap_partial

Node = dict[str, Any]
# Seconds per call of a user's reward, so that a hanging one cannot block a run. The shipped rewards
# terminate, or have their own limits.
TIMEOUT = 300.0
# Unit of a number -> its default as a multiple of the scale of the dynamics, as in conf/.
IN_UNITS: Mapping[str, str] = {
    "clip": "${{mul:{0},${{dynamics.clip_scale}}}}",
    "ratio": "${{add:1.0,${{mul:{1},${{dynamics.clip_scale}}}}}}",
    "sequence": "${{mul:{0},${{dynamics.sequence_scale}}}}",
    "preference": "${{mul:{0},${{dynamics.preference_scale}}}}",
}


def node_of(group: str, name: str, component: Callable) -> Node:
    """The YAML of an option."""
    return NODES[group](name, component)


def groups_offering(group: str) -> Sequence[str]:
    """The groups of the options that components of a group make."""
    return OFFERED_AS.get(group, (group,))


def bound_call(name: str, component: Callable, *, made: bool = False) -> Node:
    """The partial call of a function with its defaults; `???` where a keyword has none.

    Numbers taken by `**numbers` have no defaults: `+algorithm.loss.alpha=2` adds one. A class is
    instantiated with its defaults, and the object is called. What is `made` when the run is built,
    as a class is, gets all of its arguments from the configuration. Raises ValueError for a default
    that is a function without a name, and for a keyword named `defaults`.
    """
    units = facts_of(component).units
    call: Node = {"_target_": place(component)}
    if not inspect.isclass(component):
        call["_partial_"] = True
    asked = {Parameter.KEYWORD_ONLY}
    if made or inspect.isclass(component):
        asked.add(Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in inspect.signature(component).parameters.values():
        if parameter.name == "defaults":  # Hydra's list of the files of a configuration
            raise ValueError(
                f"{place(component)}: a configuration cannot hold a keyword named defaults; rename "
                "it"
            )
        if parameter.default is not Parameter.empty:
            default = _as_value(parameter.default, f"{place(component)}: {parameter.name}")
            call[parameter.name] = _in_units(default, units.get(parameter.name))
        elif parameter.kind in asked:
            call[parameter.name] = "???"
    return call


def _as_value(default: Any, where: str) -> Any:
    """A default as a YAML value; a function becomes the node that binds it."""
    function, numbers = unwrap_partial(default)
    by_place = isinstance(default, functools.partial) and default.args
    if not inspect.isfunction(function) or by_place:
        return as_text(default)
    if not function.__qualname__.isidentifier():
        raise ValueError(
            f"{where}: its default {function.__qualname__} has no name in a configuration; define "
            "it with def at the top of a module"
        )
    held = {name: _as_value(number, where) for name, number in numbers.items()}
    return {"_target_": place(function), "_partial_": True, **held}


def as_text(value: Any) -> Any:
    """Plain values as values of a configuration in which `${seed}` stays text; paths are text."""
    match value:
        case dict():
            return {name: as_text(item) for name, item in value.items()}
        case list() | tuple():
            return [as_text(item) for item in value]
        case str():
            return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
        case os.PathLike():
            return as_text(os.fspath(value))
    return value


def _in_units(default: Any, unit: str | None) -> Any:
    if isinstance(default, list):
        return [_in_units(x, unit) for x in default]
    if unit not in IN_UNITS or type(default) not in (int, float):
        return default
    return IN_UNITS[unit].format(default, default - 1)


def reward_node(name: str, component: Callable) -> Node:
    """An option as in conf/reward: one key, so that a list of options merges."""
    call = bound_call(name, component)
    return {name: {"_target_": "tandem.rewards.Reward", "function": call, "timeout": TIMEOUT}}


def kl_node(name: str, component: Callable) -> Node:
    """An option as in conf/algorithm/kl: a term of the loss with a coefficient."""
    call = bound_call(name, component)
    return {"_target_": "tandem.algorithm.regularizers.KLInLoss", "coef": 0.0, "loss": call}


def dynamics_node(name: str, kernel: Callable) -> Node:
    """An option as in conf/dynamics: the steps of a flow, some of them stochastic, if any."""
    steps = "_noiseless" if facts_of(kernel).noiseless else "_random"
    return {"defaults": [steps, "_self_"], "kernel": bound_call(name, kernel)}


def likelihood_node(name: str, logp: Callable) -> Node:
    """The log-probability of a step, and the scale of clip numbers of its ratios beside it."""
    scale = facts_of(logp).clip_scale
    over_size = f"${{mul:{scale},${{power:${{dynamics.latent_size}},-0.5}}}}"
    return {
        "step_clip_scale": "???" if scale is None else over_size,
        "clip_scale": "${of_steps:${dynamics.step_clip_scale}}",
        "logp": bound_call(name, logp),
    }


def engine_node(name: str, engine: Callable) -> Node:
    """An option as in conf/rollout: the built-in rollout of its kind with another engine. Raises
    ValueError for what is no engine."""
    from tandem.policies.engines.protocol import EngineOption  # imports torch

    if not (inspect.isclass(engine) and issubclass(engine, EngineOption)):
        raise ValueError(
            f"{place(engine)} is no rollout engine; write a class that inherits from "
            "tandem.policies.engines.protocol.RolloutEngine, from EngineOption there if it samples "
            "from the trained weights, or from tandem.policies.flow.engine.PictureEngine for images"
        )
    own = {"tokens": "local", "flow": "denoise"}[engine.samples]
    return {"defaults": [own, "_self_"], "engine": made_call(name, engine)}


def dynamics_of(group: str, component: Callable) -> Node | None:
    """The choice of `dynamics=auto`, as in conf/dynamics/_of; None: the dynamics of tokens."""
    if group != "rollout" or component.samples == "tokens":
        return None
    return {"defaults": ["/dynamics/flow_sde@_global_.dynamics"]}


def data_node(name: str, component: Callable) -> Node:
    """An option as in conf/data: the call, and a curriculum if it takes one."""
    call = made_call(name, component)
    if call.pop("curriculum", None) is None:
        return call
    return {"defaults": [{"curriculum": "uniform"}, "_self_"], **call}


def model_node(name: str, build: Callable) -> Node:
    """An option as in conf/model: a language model and its tokenizer, made by a function."""
    call = {**made_call(name, build), "_partial_": True}
    return {"defaults": ["_language", "_self_"], "model": {"path": None, "build": call}}


def family_node(name: str, adapter: Callable) -> Node:
    """An option as in conf/model: a flow model with a family adapter for its transformer."""
    chosen = {"algorithm": "flow_grpo", "data": "text", "reward": "jpeg_compressibility"}
    overrides = [{f"override /{group}": option} for group, option in chosen.items()]
    size = facts_of(adapter).latent_size
    model = {
        "path": None,
        "adapter": made_call(name, adapter),
        "latent_size": "???" if size is None else size,
    }
    return {"defaults": ["_flow", *overrides, "_self_"], "model": model}


def environment_node(name: str, world: Callable) -> Node:
    """An option as in conf/environment: a world, or a function of the moves so far."""
    made = made_call if inspect.isclass(world) else bound_call
    return {"_target_": "tandem.environments.Environment", "world": made(name, world)}


def made_call(name: str, component: Callable) -> Node:
    """A call made when the run is built; `seed` is the seed of the run."""
    call = {k: x for k, x in bound_call(name, component, made=True).items() if k != "_partial_"}
    return call | ({"seed": "${seed}"} if "seed" in call else {})


CALLED = (
    "algorithm/loss",
    "algorithm/advantage",
    "algorithm/weights",
    "algorithm/importance_sampling",
    "algorithm/old_logprobs",
    "algorithm/likelihood",
    "algorithm/sampling_strategy",
    "algorithm/truncation_handling",
    "algorithm/kl/gate",
    "algorithm/teachers/divergence",
    "algorithm/sampling_strategy/reprompt",
    "algorithm/loss/weight",
    "algorithm/loss/distance",
    "algorithm/loss/target",
    "algorithm/loss/centre",
    "algorithm/loss/tilt",
    "algorithm/loss/fit",
    "algorithm/query",
    "algorithm/timestep_sampling/weighting",
    "algorithm/timestep_sampling/among",
    "dynamics/schedule",
    "dynamics/solver",
    "dynamics/stochastic",
    "dynamics/stochastic/stay",
    "model/ema",
)
NODES: Mapping[str, Callable[[str, Callable], Node]] = {
    **dict.fromkeys(CALLED, bound_call),
    "algorithm/kl": kl_node,
    "reward": reward_node,
    "dynamics": dynamics_node,
    "dynamics/logp": likelihood_node,
    "rollout": engine_node,
    "data": data_node,
    "environment": environment_node,
    "model": model_node,
    "model/quantization": made_call,
    "model/family": family_node,
}
# Group of components -> groups of its options, if not it alone.
OFFERED_AS: Mapping[str, Sequence[str]] = {
    "model/family": ("model",),
    "dynamics/solver": ("dynamics/solver", "evaluation/solver"),
}
# Group -> the place of its options, if they also set keys beside their own.
PLACED_IN: Mapping[str, str] = {"model": "_global_", "dynamics/logp": "dynamics"}
