"""Rules of domains: which functions make sense of tokens, Gaussian steps or pictures.

A function says where it does not by `refused`. Where it only reads what nobody could tell it, that
is reason enough, and known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import product

from tandem.algorithm.algorithm import ON_ERRORS
from tandem.contracts import facts_of, name_of, parts_of
from tandem.legality.case import BOUNDS, PICTURES, STEPS, TOKENS, Case

GAUSSIAN = ("transition", "kl_to_old", "kl_to_ref")
CRITICS = ("values", "old_values", "returns")
# What cannot be known of a step in a domain, and why.
UNKNOWN = {
    TOKENS: dict.fromkeys(GAUSSIAN, "tokens are no Gaussian steps"),
    BOUNDS: {
        **dict.fromkeys(GAUSSIAN, "tokens are no Gaussian steps"),
        **dict.fromkeys(CRITICS, "a bound on log p passes no states that a critic could value"),
        "behaviour_logp": "the sampler says how likely its steps were, which a bound on log p does "
        "not count",
        "entropy": "a bound on log p is no distribution, so it has no entropy",
        "sum_pi_squared": "a bound on log p is no distribution",
        "teacher_logp": "a teacher says how likely steps are that were taken one by one",
    },
    STEPS: {
        "entropy": "the entropy of a Gaussian step is a constant of its noise level",
        "sum_pi_squared": "a Gaussian step has a density, and no probabilities to square",
    },
    PICTURES: {
        **dict.fromkeys(GAUSSIAN, "a picture as a whole is no Gaussian step"),
        **dict.fromkeys(CRITICS, "a picture as a whole passes no states that a critic could value"),
        "behaviour_logp": "nobody knows how likely the sampler was to paint a picture as a whole",
        "entropy": "a regression error has no entropy",
        "sum_pi_squared": "a regression error is no distribution over tokens",
    },
}
INSTEAD = {
    "loss": "algorithm/loss=ppo",
    "advantage": "algorithm/advantage=group_relative",
    "importance_sampling": "algorithm/importance_sampling=none",
    "old_logprobs": "algorithm/old_logprobs=recompute",
    "critic": "algorithm.critic=null",
}


def refusal(function: Callable, where: str, group: str) -> str | None:
    """The reason why a function makes no sense in a domain, and what to set; None if it does."""
    facts = facts_of(function)
    alike = where == BOUNDS and not facts.of_bounds
    for domain in (where, TOKENS) if alike else (where,):
        if (reason := facts.refused.get(domain)) is not None:
            return reason
    reason = next((why for name, why in UNKNOWN[where].items() if name in facts.reads), None)
    if reason is None or group not in INSTEAD:
        return reason
    return f"{reason}; set {INSTEAD[group]}"


def steps_are_sampled(case: Case) -> Iterator[str]:
    """By dynamics with noise alone."""
    dynamics = case.plan.dynamics
    if case.is_of_texts or case.is_offline or case.algorithm.objective != "policy_gradient":
        return
    if facts_of(dynamics.kernel).noiseless:
        yield (
            f"algorithm={case.plan.choices['algorithm']} asks how likely sampled steps are, and "
            f"dynamics={dynamics.name} takes none at random; set dynamics=flow_sde, dance_sde or "
            "cps"
        )


def functions_make_sense(case: Case) -> Iterator[str]:
    """Of everything that the algorithm calls, its loss first: much of the rest follows from it."""
    groups = sorted((one.name for one in fields(case.algorithm)), key=lambda name: name != "loss")
    for group, (segment, domain) in product(groups, case.domains.items()):
        for function in parts_of(getattr(case.algorithm, group), segment):
            if _is_judged_elsewhere(case, function, group):
                continue
            if (reason := refusal(function, domain, group)) is not None:
                place = _place(case) if segment is None else f"the {segment} of a chain"
                said = f"{_shown(case, group)} on {place}: {reason}"
                yield said + _of_velocities(case, group)


def _is_judged_elsewhere(case: Case, function: Callable, group: str) -> bool:
    """Of a sample of two segments: its parts are, or it makes sense of the other one."""
    facts = facts_of(function)
    if not case.is_chain or not facts.where_it_can:
        return case.is_chain and bool(facts.segments)
    return any(refusal(function, domain, group) is None for domain in case.domains.values())


def rows_of_data_have_no_steps(case: Case) -> Iterator[str]:
    """Rows of data have no sampled steps for an objective that reads them."""
    whole = case.domain == PICTURES and case.is_offline
    if whole and case.algorithm.objective == "policy_gradient":
        yield (
            f"algorithm={case.plan.choices['algorithm']} asks how likely sampled steps are, and "
            f"{_place(case)} have none; set algorithm=sft"
        )


def numbers_are_of_their_dynamics(case: Case) -> Iterator[str]:
    """Numbers that single dynamics lack, where the domain does not tell."""
    dynamics, kl = case.plan.dynamics, case.algorithm.kl
    timeless = next((part for part in parts_of(kl) if facts_of(part).of_sde), None)
    if timeless is not None and not case.is_of_texts and not facts_of(dynamics.kernel).of_sde:
        yield (
            f"algorithm/kl={name_of(timeless)} leaves out the duration of an SDE's step, and that "
            f"of dynamics={dynamics.name} has none; set algorithm/kl=gaussian"
        )
    if case.loss_facts.reads_density and facts_of(dynamics.logp).unscaled:
        yield (
            f"dynamics/logp={name_of(dynamics.logp)}: {name_of(case.loss)} takes the "
            "log-probability of a step for a density; set dynamics/logp=gaussian"
        )


def _of_velocities(case: Case, group: str) -> str:
    """The option to set in place of a KL where velocity errors are known."""
    known = group == "kl" and case.algorithm.objective in ON_ERRORS
    return ", or algorithm/kl=regressed, the distance of velocities" if known else ""


def _shown(case: Case, group: str) -> str:
    """As a user would write it: the innermost part that is an option of the group."""
    named = [part for part in parts_of(getattr(case.algorithm, group)) if facts_of(part).option]
    return f"algorithm/{group}={name_of(named[0])}" if named else f"algorithm.{group}"


def _place(case: Case) -> str:
    dynamics = f"dynamics={case.plan.dynamics.name}"
    return f"rows of data under {dynamics}" if case.is_offline else dynamics


RULES = (
    steps_are_sampled,
    functions_make_sense,
    rows_of_data_have_no_steps,
    numbers_are_of_their_dynamics,
)
