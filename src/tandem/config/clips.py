"""The clip ratio of PPO in the unit of another loss: `${clip_ratio:0.2}`."""

from __future__ import annotations

from omegaconf import DictConfig

from tandem.config.names import ConfigError
from tandem.config.targets import resolve
from tandem.contracts import facts_of, name_of


def clip_ratio(ratio: float, _root_: DictConfig) -> float:
    """Raises ConfigError for a loss that clips no ratio, or clips another thing."""
    loss = resolve(_root_.algorithm.loss._target_, "algorithm.loss")
    facts = facts_of(loss)
    if facts.clips is None:
        raise ConfigError(
            f"algorithm={_root_.choices.algorithm} has the loss {name_of(loss)}, which has no "
            "clip_low and clip_high of a ratio; sweep a number of its own, or take another "
            "algorithm"
        )
    scale = _root_.dynamics[f"{facts.units['clip_low']}_scale"]
    return float(f"{ratio * facts.clips * scale:.3g}")
