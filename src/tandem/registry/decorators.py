"""The decorators: one for each group of functions that a user may add to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from tandem.registry.options import Node, register
from tandem.registry.spellings import Spelling, refuse_others

# Seconds of one call of a user's reward: one that hangs must not hold a run for ever. The rewards
# that are shipped end by themselves, or have limits of their own.
TIMEOUT = 300.0

Component = TypeVar("Component", bound=Callable)
Decorator = Callable[[Component], Component]


@overload
def register_reward(function: Component) -> Component: ...
@overload
def register_reward(function: str) -> Decorator: ...
def register_reward(function: Component | str) -> Component | Decorator:
    """`@register_reward` or `@register_reward("name")` above `def reward(output, prompt, *, ...)`.

    Then `reward=name` chooses it, and `reward.name.function.alpha=2` sets its keyword `alpha`.
    """
    return register("reward", reward_node)(function)


@overload
def register_adv_estimator(function: Component) -> Component: ...
@overload
def register_adv_estimator(function: str) -> Decorator: ...
def register_adv_estimator(function: Component | str) -> Component | Decorator:
    """`@register_adv_estimator` or `@register_adv_estimator("name")` above an advantage.

    Then `algorithm/advantage=name` chooses it, and `algorithm.advantage.alpha=2` sets its keyword.

    `def mine(scores, rollout, *, alpha=1.0)` gives advantages [B, T] and stays as it is. `def
    mine(rewards, mask, *, alpha=1.0)` gives (advantages, returns), each [B, T], and becomes such a
    function (`mine.__wrapped__` is what was written): rewards [B, T] hold each sample's total on
    its last trained step, unless its score is spread over its steps. Of the returns only the shape
    is looked at: a critic learns a target of its own.
    """
    return register("algorithm/advantage", component_node, advantage_form)(function)


@overload
def register_policy_loss(function: Component) -> Component: ...
@overload
def register_policy_loss(function: str) -> Decorator: ...
def register_policy_loss(function: Component | str) -> Component | Decorator:
    """`@register_policy_loss` or `@register_policy_loss("name")` above a loss.

    Then `algorithm/loss=name` chooses it, and `algorithm.loss.alpha=0.3` sets its keyword `alpha`.

    `def mine(batch, *, alpha=1.0)` gives the loss of each step [B, T] and stays as it is, with
    `@needs` below for what it reads. `def mine(old_logp, logp, advantages, mask, *, alpha=1.0)`
    gives (loss, metrics), a scalar and numbers to log, and becomes such a function
    (`mine.__wrapped__` is what was written). It averages itself, so its update must stay whole: one
    micro-batch, one rank, and weights that add up to 1.
    """
    return register("algorithm/loss", component_node, loss_form)(function)


def component_node(name: str, call: Node) -> Node:
    """The node is the function itself, as in the groups of losses and advantages."""
    return call


def reward_node(name: str, call: Node) -> Node:
    """As in conf/reward: one key, so that a list of options merges."""
    costs = {"weight": 1.0, "range": None, "batch_size": None, "timeout": TIMEOUT}
    return {name: {"_target_": "tandem.rewards.Reward", "function": call, **costs}}


ADVANTAGES = (
    Spelling(("scores", "rollout"), "advantages [B, T]"),
    Spelling(("rewards", "mask"), "(advantages, returns), each [B, T]"),
)
LOSSES = (
    Spelling(("batch",), "the loss of each step [B, T]"),
    Spelling(("old_logp", "logp", "advantages", "mask"), "(loss, metrics), a scalar and a mapping"),
)


def advantage_form(function: Callable) -> Callable[..., Any]:
    """The function as `(scores, rollout, *, numbers) -> advantages`."""
    if refuse_others(function, ADVANTAGES) is ADVANTAGES[0]:
        return function
    from tandem.advantages.adapted import from_rewards  # torch: whoever wrote it has it by now

    return from_rewards(function)


def loss_form(function: Callable) -> Callable[..., Any]:
    """The function as `(batch, *, numbers) -> loss per step`."""
    if refuse_others(function, LOSSES) is LOSSES[0]:
        return function
    from tandem.losses.adapted import from_scalar

    return from_scalar(function)
