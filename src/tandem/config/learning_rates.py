"""Learning rates of Adam by model size: one table for presets and sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from omegaconf import DictConfig

Level = Literal["low", "middle", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A range of learning rates."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean."""
        return math.sqrt(self.low * self.high)


def range_around(rate: float) -> Rates:
    """The range around a single known rate: from its half to its double."""
    return Rates(low=rate / 2, high=2 * rate)


TINY = 1e7  # parameters; smaller models are embedded ones
# Upper bound of parameters -> range for full weights. Models called 70B have up to 70.6e9
# parameters. Embedded models: around the tuned recipe of tiny_lm and grpo.
LANGUAGE: Mapping[float, Rates] = {
    TINY: range_around(3e-4),
    1e9: Rates(low=5e-6, high=1e-5),
    10e9: Rates(low=1e-6, high=5e-6),
    71e9: Rates(low=5e-7, high=1e-6),
    math.inf: Rates(low=1e-7, high=5e-7),
}
UNKNOWN = 1e-6  # the boundary between the rows of 1B to 10B and of 10B to 70B
# Factor over the rate of full weights, from sweeps with adapters on all linear layers
# (LoRA Without Regret, Schulman et al., 2025, thinkingmachines.ai/blog/lora).
ADAPTERS = 10
# Flow models, of any size: as in their papers. The embedded one: as in most of its recipes.
FLOW = {"weights": range_around(1e-5), "adapters": range_around(3e-4), "tiny": range_around(1e-3)}
LEVELS: tuple[Level, ...] = ("low", "middle", "high")


def language_rate(level: Level, *, parameters: float | None, lora: bool) -> float:
    """The learning rate of a language model. Raises ValueError for low and high without a size."""
    times = ADAPTERS if lora else 1
    if parameters is not None:
        row = next(rates for below, rates in LANGUAGE.items() if parameters < below)
        return _round(times * _at(row, level))
    if level != "middle":
        raise ValueError("the range depends on the model size; set it, such as parameters=8.2e9")
    return times * UNKNOWN


def flow_rate(level: Level, *, parameters: float | None, lora: bool) -> float:
    """The learning rate of a flow at one level of its range."""
    if parameters is not None and parameters < TINY:
        return _round(_at(FLOW["tiny"], level))
    return _round(_at(FLOW["adapters" if lora else "weights"], level))


def _at(rates: Rates, level: Level) -> float:
    return {"low": rates.low, "middle": rates.middle, "high": rates.high}[level]


def _round(rate: float) -> float:
    """The rate with three digits, for readable names of folders and tables."""
    return float(f"{rate:.3g}")


def learning_rate(level: Level, _root_: DictConfig) -> float:
    """The value of `${learning_rate:middle}`. Raises ValueError for entries the table lacks."""
    if level not in LEVELS:
        raise ValueError(f"learning_rate:{level}: there are {', '.join(LEVELS)}")
    if _root_.optimizer._target_.endswith(".SGD"):
        raise ValueError("the table is for Adam; with optimizer=sgd, set optimizer.lr to a number")
    rate = flow_rate if "latent_size" in _root_.model else language_rate
    lora = _root_.model.get("lora") is not None
    return rate(level, parameters=_root_.parameters, lora=lora)
