"""Functions of the user's own as options of the configuration.

A decorator declares what a function is when its module is imported, which `plugins=[module]` does
before composing. What stands in its signature with a default is its configuration. A function of a
notebook is an option once its cell has run. Tandem's own functions have the same decorators.
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
