"""Adam's learning rate by the size of a model: one table, which presets and sweeps read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from omegaconf import DictConfig

Level = Literal["low", "middle", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A range for full weights, or for whatever a table says that it is for."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric one."""
        return math.sqrt(self.low * self.high)


def around(rate: float) -> Rates:
    """The range around a number that alone is known to work: from its half to its double."""
    return Rates(low=rate / 2, high=2 * rate)


TINY = 1e7  # parameters, up to which a model is an embedded one
# Parameters below which a row holds -> its range, full weights. Models that are called 70B have up
# to 70.6e9. The embedded ones: around what the recipe of tiny_lm and grpo was tuned to.
LANGUAGE: Mapping[float, Rates] = {
    TINY: around(3e-4),
    1e9: Rates(low=5e-6, high=1e-5),
    10e9: Rates(low=1e-6, high=5e-6),
    71e9: Rates(low=5e-7, high=1e-6),
    math.inf: Rates(low=1e-7, high=5e-7),
}
UNKNOWN = 1e-6  # where the rows of 1B to 10B and of 10B to 70B meet
# Times the rate of full weights, as sweeps found it for adapters on all linear layers
# (LoRA Without Regret, Schulman et al., 2025, thinkingmachines.ai/blog/lora).
ADAPTERS = 10
# Of flows: as their papers have it, at any size. The embedded one: as most of its recipes have it.
FLOW = {"weights": around(1e-5), "adapters": around(3e-4), "tiny": around(1e-3)}
LEVELS: tuple[Level, ...] = ("low", "middle", "high")


def language_rate(level: Level, *, parameters: float | None, lora: bool) -> float:
    """Raises ValueError for an end of the range of a model whose size nobody said."""
    times = ADAPTERS if lora else 1
    if parameters is not None:
        row = next(rates for below, rates in LANGUAGE.items() if parameters < below)
        return _round(times * _at(row, level))
    if level != "middle":
        raise ValueError("the range depends on the size of the model: say it, as parameters=8.2e9")
    return times * UNKNOWN


def flow_rate(level: Level, *, parameters: float | None, lora: bool) -> float:
    """The learning rate of a flow at one level of its range."""
    if parameters is not None and parameters < TINY:
        return _round(_at(FLOW["tiny"], level))
    return _round(_at(FLOW["adapters" if lora else "weights"], level))


def _at(rates: Rates, level: Level) -> float:
    return {"low": rates.low, "middle": rates.middle, "high": rates.high}[level]


def _round(rate: float) -> float:
    """To three digits, so that folders and tables are named by numbers that people can read."""
    return float(f"{rate:.3g}")


def learning_rate(level: Level, _root_: DictConfig) -> float:
    """`${learning_rate:middle}` of a configuration. Raises ValueError for what the table lacks."""
    if level not in LEVELS:
        raise ValueError(f"learning_rate:{level}: there are {', '.join(LEVELS)}")
    if _root_.optimizer._target_.endswith(".SGD"):
        raise ValueError("the table is Adam's: optimizer=sgd takes a number")
    rate = flow_rate if "latent_size" in _root_.model else language_rate
    lora = _root_.model.get("lora") is not None
    return rate(level, parameters=_root_.parameters, lora=lora)
