"""What a clip ratio of PPO is in the unit of another loss: `${clip_ratio:0.2}`."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from tandem.config.names import ConfigError


def _of_a_step(dynamics: DictConfig) -> float:
    return dynamics.clip_unit


def _of_a_sample(dynamics: DictConfig) -> float:
    """GSPO's published 3e-4 stands where PPO's .2 does, and so do both for flows."""
    return 1.5e-3 * dynamics.sequence_unit


def _of_a_guarded_step(dynamics: DictConfig) -> float:
    """GRPO-Guard's published 4e-3 stands where PPO's .2 does."""
    return 0.02 * dynamics.clip_unit


# Function of the loss -> what 1 of PPO's clip is in its own clip_low and clip_high.
UNITS: dict[str, Callable[[DictConfig], float]] = {
    "tandem.losses.policy.ppo": _of_a_step,
    "tandem.losses.selective.clip_cov": _of_a_step,
    "tandem.losses.gaussian.weighted_ppo": _of_a_step,
    "tandem.losses.sequence.gmpo": _of_a_step,  # nats, which a ratio near 1 is too
    "tandem.losses.sequence.gspo": _of_a_sample,
    "tandem.losses.sequence.gspo_token": _of_a_sample,
    "tandem.losses.gaussian.grpo_guard": _of_a_guarded_step,
}


def clip_ratio(ratio: float, _root_: DictConfig) -> float:
    """Raises ConfigError for a loss that clips no ratio, or clips another thing."""
    chosen = f"algorithm={_root_.choices.algorithm}"
    loss = _root_.algorithm.loss._target_
    unit = UNITS.get(loss)
    if unit is None:
        name = loss.rpartition(".")[2]
        raise ConfigError(
            f"{chosen} has the loss {name}, which has no clip_low and clip_high of a "
            "ratio; sweep a number of its own, or take another algorithm"
        )
    return float(f"{ratio * unit(_root_.dynamics):.3g}")
