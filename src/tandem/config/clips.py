"""The clip ratio of PPO in the unit of another loss: `${clip_ratio:0.2}`."""

from __future__ import annotations

from omegaconf import DictConfig

from tandem.config.names import ConfigError
from tandem.config.targets import resolve
from tandem.contracts import facts_of, name_of


def clip_ratio(ratio: float, _root_: DictConfig) -> float:
    """The clip ratio in units of the chosen loss. Raises ConfigError if it clips no ratio."""
    loss = resolve(_root_.algorithm.loss._target_, "algorithm.loss")
    facts = facts_of(loss)
    if facts.clips is None:
        raise ConfigError(
            f"algorithm={_root_.choices.algorithm} has the loss {name_of(loss)}, which does not "
            "clip a ratio; sweep another number, or set another algorithm"
        )
    scale = _root_.dynamics[f"{facts.units['clip_low']}_scale"]
    return float(f"{ratio * facts.clips * scale:.3g}")
