"""RL post-training of language models and flow models with one training step."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.contracts import (
        register_adv_estimator,
        register_correction,
        register_dataset,
        register_divergence,
        register_dynamics,
        register_environment,
        register_flow_family,
        register_kl,
        register_model,
        register_noise_schedule,
        register_old_logprobs,
        register_policy_loss,
        register_quantization,
        register_reprompt,
        register_reward,
        register_rollout_engine,
        register_sampling_strategy,
        register_truncation,
        register_weights,
    )
    from tandem.launch.run import Result

__all__ = [
    "register_adv_estimator",
    "register_correction",
    "register_dataset",
    "register_divergence",
    "register_dynamics",
    "register_environment",
    "register_flow_family",
    "register_kl",
    "register_model",
    "register_noise_schedule",
    "register_old_logprobs",
    "register_policy_loss",
    "register_quantization",
    "register_reprompt",
    "register_reward",
    "register_rollout_engine",
    "register_sampling_strategy",
    "register_truncation",
    "register_weights",
    "train",
]

# `python -m` looks for modules where it is started; a run directory is no place for them.
sys.path[:] = [
    place
    for place in sys.path
    if not all(os.path.isfile(os.path.join(place, x)) for x in ("config.yaml", "manifest.json"))
]


def train(*overrides: str) -> Result:
    """`python train.py OVERRIDES` from Python: the final metrics and the run directory.

    Raises:
        ConfigError: an override that does not fit, with the nearest one that does.
        Stop: a guard ended the run.
    """
    from tandem.launch.run import train  # it imports torch and lightning, which takes seconds

    return train(*overrides)


def __getattr__(name: str) -> object:
    """The decorators, imported on first use: importing the package imports nothing else."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tandem import contracts

    return getattr(contracts, name)
