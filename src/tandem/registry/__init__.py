"""Functions of the user's own as options of the configuration.

A decorator puts a function into Hydra's store when its module is imported, which `plugins=[module]`
does before composing. What stands in its signature with a default is its configuration.
A function of a notebook is an option once its cell has run.
"""

from tandem.registry.decorators import (
    register_adv_estimator,
    register_policy_loss,
    register_reward,
)

__all__ = ["register_adv_estimator", "register_policy_loss", "register_reward"]
