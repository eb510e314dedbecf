"""Decorators that make user functions options of the configuration.

A decorator registers a function when its module is imported, which `plugins=[module]` does before
composing. Keywords with defaults become configuration keys. A function in a notebook is an option
once its cell has run. Built-in functions use the same decorators.
"""

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
]
