"""Interpolations in configurations, such as `${mul:2,3}` and `${clip_ratio:0.2}`."""

from __future__ import annotations

import math
import os

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from tandem.config.learning_rates import learning_rate
from tandem.config.names import ConfigError
from tandem.config.targets import resolve
from tandem.contracts import facts_of, name_of

MOST = 2**63  # of an integer: chained products could grow without bound


def register_resolvers() -> None:
    """Make the interpolations known to OmegaConf."""
    resolvers = {
        "mul": multiply,
        "add": add,
        "power": power,
        "max": max,
        "ceil": math.ceil,
        "either": either,
        "pid": os.getpid,
        "choice": choice,
        "clip_ratio": clip_ratio,
        "of_steps": of_steps,
        "learning_rate": learning_rate,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def multiply(*factors: float) -> float:
    """The product. Raises ValueError for values other than numbers, such as lists."""
    if strange := [factor for factor in factors if type(factor) not in (int, float)]:
        raise ValueError(f"mul takes numbers, got {strange[0]}")
    product = math.prod(factors)
    if isinstance(product, int) and abs(product) > MOST:
        raise ValueError("mul gives an integer beyond 2**63")
    return product


def add(*terms: float) -> float:
    return math.fsum(terms)


def power(base: float, exponent: float) -> float:
    """An integer if both arguments are integers and it is small, else a float."""
    result = math.pow(base, exponent)
    whole = type(base) is type(exponent) is int and exponent >= 0
    return base**exponent if whole and abs(result) <= MOST else result


def either(first: object, second: object) -> object:
    """The first, unless it is null."""
    return second if first is None else first


def choice(group: str, _root_: DictConfig) -> str:
    """The option of a group; from Hydra when it names a job folder, before `choices` is set."""
    return (_root_.choices or HydraConfig.get().runtime.choices)[group]


def clip_ratio(ratio: float, _root_: DictConfig) -> float:
    """The clip ratio of PPO in units of the chosen loss. Raises ConfigError if it clips no
    ratio."""
    loss = resolve(_root_.algorithm.loss._target_, "algorithm.loss")
    facts = facts_of(loss)
    if facts.clips is None:
        raise ConfigError(
            f"algorithm={_root_.choices.algorithm} has the loss {name_of(loss)}, which does not "
            "clip a ratio; sweep another number, or set another algorithm"
        )
    scale = _root_.dynamics[f"{facts.units['clip_low']}_scale"]
    return float(f"{ratio * facts.clips * scale:.3g}")


def of_steps(scale: float, _root_: DictConfig) -> float:
    """The scale of ratios of sampled steps; 1 if ratios are of velocity errors instead."""
    from tandem.algorithm.algorithm import ON_ERRORS  # imports torch

    return 1.0 if _root_.algorithm.get("objective") in ON_ERRORS else scale
