"""Which functions make sense of what a composition trains on: tokens, Gaussian steps, or pictures.

A function says where it does not by `@refused_on`. Where it only reads what nobody could tell it,
that is reason enough, and known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from tandem import kl as kl_losses
from tandem.advantages.compose import Share
from tandem.algorithm import ON_ERRORS
from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.composition import conf_folder
from tandem.config.targets import resolve
from tandem.contracts import DOMAINS, defaults_of, facts_of, unbound
from tandem.dynamics.likelihood import unscaled_logp
from tandem.losses import gaussian
from tandem.penalties import KL, Anchor, EntropyBonus

TOKENS, STEPS, PICTURES = DOMAINS
SWITCHED_OFF = (KL, Anchor, EntropyBonus, Share)  # by the coefficient 0

GAUSSIAN = ("transition", "kl_to_old", "kl_to_ref")
CRITICS = ("values", "old_values", "returns")
# What cannot be known of a step in a domain, and why.
UNKNOWN = {
    TOKENS: dict.fromkeys(GAUSSIAN, "tokens are no Gaussian steps"),
    STEPS: {"entropy": "the entropy of a Gaussian step is a constant of its noise level"},
    PICTURES: {
        **dict.fromkeys(GAUSSIAN, "a picture as a whole is no Gaussian step"),
        **dict.fromkeys(CRITICS, "a picture as a whole passes no states that a critic could value"),
        "behaviour_logp": "nobody knows how likely the sampler was to paint a picture as a whole",
        "entropy": "a regression error has no entropy",
    },
}
INSTEAD = {
    "loss": "algorithm/loss=ppo",
    "advantage": "algorithm/advantage=group_relative",
    "correction": "algorithm/correction=none",
    "proximal": "algorithm/proximal=recomputed",
    "critic": "algorithm.critic=null",
}


def domain(composed: Composed) -> str:
    """What the log-probabilities of a composition are of: one of DOMAINS."""
    dynamics, wanted = composed.settings.dynamics.name, _evidence(composed)
    if dynamics == "autoregressive":
        return TOKENS
    whole = wanted in ON_ERRORS or (wanted == "any" and dynamics == "ode")
    return PICTURES if whole or composed.is_offline else STEPS


def _evidence(composed: Composed) -> str:
    return composed.components["algorithm"].arguments["evidence"]


def functions_make_sense(composed: Composed) -> str | None:
    """Of everything that the algorithm calls, its loss first: much of the rest follows from it."""
    where, parts = domain(composed), composed.components["algorithm"].arguments
    for group, part in sorted(parts.items(), key=lambda item: item[0] != "loss"):
        reasons = (refusal(function, where, group) for function in functions(part))
        if (reason := next(filter(None, reasons), None)) is not None:
            reason = f"{_shown(group, part)} on {_place(composed)}: {reason}"
            return reason + _of_velocities(composed, group)
    return None


def _of_velocities(composed: Composed, group: str) -> str:
    """What to set in place of a KL where velocity errors are known."""
    known = group == "kl" and _evidence(composed) in ON_ERRORS
    return ", or algorithm/kl=regressed, the distance of velocities" if known else ""


def steps_are_sampled(composed: Composed) -> str | None:
    """By stochastic dynamics alone."""
    wanted, name = _evidence(composed), composed.settings.choices["algorithm"]
    dynamics = composed.settings.dynamics.name
    if dynamics != "ode" or composed.is_offline or wanted != "path":
        return None
    return (
        f"algorithm={name} asks how likely sampled steps are, and dynamics=ode takes none at "
        "random; set dynamics=flow_sde, dance_sde or cps"
    )


def rows_of_data_have_no_steps(composed: Composed) -> str | None:
    whole = domain(composed) == PICTURES and composed.is_offline
    if not whole or _evidence(composed) != "path":
        return None
    return (
        f"algorithm={composed.settings.choices['algorithm']} asks how likely sampled steps are, "
        f"and {_place(composed)} have none; set algorithm=sft"
    )


def numbers_are_of_their_dynamics(composed: Composed) -> str | None:
    """What single dynamics lack, where the domain does not tell."""
    dynamics, loss = composed.settings.dynamics, composed.policy_loss
    kl = composed.within("algorithm", "kl")
    timeless = kl is not None and not _is_off(kl) and kl_losses.timeless in functions(kl)
    if timeless and dynamics.name == "cps":
        return (
            "algorithm/kl=timeless leaves out the duration of an SDE's step, and that of "
            "dynamics=cps has none; set algorithm/kl=gaussian"
        )
    guards = loss is not None and loss.target is gaussian.grpo_guard
    if guards and unbound(dynamics.logp)[0] is unscaled_logp:
        return (
            "dynamics/logp=unscaled: grpo_guard takes the log-probability of a step for a density; "
            "set dynamics/logp=gaussian"
        )
    return None


def refusal(function: Callable, where: str, group: str) -> str | None:
    """Why a function makes no sense in a domain, and what to set; None if it does."""
    if (reason := facts_of(function).refused.get(where)) is not None:
        return reason
    read = facts_of(function).reads
    reason = next((why for name, why in UNKNOWN[where].items() if name in read), None)
    if reason is None or group not in INSTEAD:
        return reason
    return f"{reason}; set {INSTEAD[group]}"


def functions(part: Any) -> Iterator[Callable]:
    """All that a call would call, those included that it takes if nobody names another."""
    if isinstance(part, Call) and not _is_off(part):
        given = defaults_of(part.target) | dict(part.arguments)
        yield part.target
        yield from (default for default in given.values() if facts_of(default).refused)
        yield from functions(given)
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from functions(value)


def _is_off(call: Call) -> bool:
    """Whether its coefficient is 0, and nothing will move it."""
    if not (isinstance(call.target, type) and issubclass(call.target, SWITCHED_OFF)):
        return False
    return call.arguments.get("coef") == 0 and call.arguments.get("target") is None


def options(group: str, kl: Mapping[str, Any]) -> dict[str, Call]:
    """name -> call of each option of a group of the algorithm; kl: that of the dynamics."""
    found = {}
    for path in sorted((conf_folder() / "algorithm" / group).glob("*.yaml")):
        node = OmegaConf.to_container(OmegaConf.load(path))
        asks = {name: kl for name, value in node.items() if value == "${dynamics.kl}"}
        found[path.stem] = _sketched(node | asks)
    return found


def _sketched(node: Any) -> Any:
    """The calls of a file of conf/, without their numbers."""
    inside = {name: _sketched(x) for name, x in node.items() if isinstance(x, Mapping)}
    if "_target_" not in node:
        return inside
    return Call(resolve(node["_target_"], "conf"), inside, bool(node.get("_partial_")))


def _shown(group: str, call: Call) -> str:
    """As a user would write it: the option of conf/ that calls the same functions."""
    named = options(group, kl={})
    if not named:
        return f"algorithm.{group}"
    own = list(functions(call))
    same = [name for name, other in named.items() if list(functions(other)) == own]
    name = own[0].__name__
    return f"algorithm/{group}={name if name in same or not same else same[0]}"


def _place(composed: Composed) -> str:
    dynamics = f"dynamics={composed.settings.dynamics.name}"
    return f"rows of data under {dynamics}" if composed.is_offline else dynamics


LEGAL_RULES = (
    steps_are_sampled,
    functions_make_sense,
    rows_of_data_have_no_steps,
    numbers_are_of_their_dynamics,
)
