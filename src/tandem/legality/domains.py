"""Rules of domains: which functions apply to tokens, Gaussian steps, pictures or bounds.

A function declares the domains that it excludes by `refused`. A function that reads a quantity that
a domain does not define is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from tandem.algorithm.algorithm import ON_ERRORS
from tandem.contracts import Facts, facts_of, name_of, parts_of
from tandem.legality.case import BOUNDS, PICTURES, STEPS, TOKENS, Case

GAUSSIAN = ("transition", "kl_to_old", "kl_to_ref")
REGRESSED = "algorithm/kl=regressed"
CRITICS = ("values", "old_values", "returns")
# Quantities that a domain does not define, and why.
UNKNOWN = {
    TOKENS: dict.fromkeys(GAUSSIAN, "tokens are not Gaussian steps"),
    BOUNDS: {
        **dict.fromkeys(GAUSSIAN, "tokens are not Gaussian steps"),
        **dict.fromkeys(CRITICS, "a bound on log p has no sequence of states for a critic"),
        "behaviour_logp": "the sampler reports log-probabilities of steps, not a bound on log p",
        "entropy": "a bound on log p is not a distribution and has no entropy",
        "sum_pi_squared": "a bound on log p is not a distribution",
        "teacher_logp": "a teacher gives log-probabilities of steps, not a bound on log p",
    },
    STEPS: {
        "entropy": "the entropy of a Gaussian step is a constant of its noise level and not "
        "computed: the field is None, also for a term with the coefficient 0",
        "sum_pi_squared": "a Gaussian step has a density, not probabilities to square",
    },
    PICTURES: {
        **dict.fromkeys(GAUSSIAN, "a finished picture is not a Gaussian step"),
        **dict.fromkeys(CRITICS, "a finished picture has no sequence of states for a critic"),
        "behaviour_logp": "the probability that the sampler makes a finished picture is unknown",
        "entropy": "a regression error has no entropy",
        "sum_pi_squared": "a regression error is not a distribution over tokens",
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
    """Why a function does not apply in a domain, and what to set; None if it does."""
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
    """A policy gradient of a flow needs dynamics with noise."""
    if case.is_of_texts or case.is_offline or case.algorithm.objective != "policy_gradient":
        return
    if facts_of(case.plan.dynamics.kernel).noiseless:
        yield (
            f"algorithm={case.plan.choices['algorithm']} needs log-probabilities of random steps; "
            f"dynamics={case.plan.choices['dynamics']} takes none; set dynamics=flow_sde, "
            "dance_sde or cps"
        )


def functions_make_sense(case: Case) -> Iterator[str]:
    """Every function of the algorithm applies in its domain. The loss comes first."""
    parts = {"loss": case.algorithm.loss} | case.parts
    for (group, part), (segment, domain) in product(parts.items(), case.domains.items()):
        for function in parts_of(part, segment):
            if _is_judged_elsewhere(case, function, group):
                continue
            if (reason := refusal(function, domain, group)) is not None:
                place = _place(case) if segment is None else f"the {segment} of a chain"
                advice = _of_velocities(case, group, reason)
                kind = _another_model(case, facts_of(function), group, domain)
                name = _innermost_option(case, group, segment)
                yield kind or f"{name} on {place}: {reason}{advice}"


def _another_model(case: Case, facts: Facts, group: str, domain: str) -> str | None:
    """The message if the algorithm that the command line names chose this part, and the part is for
    another kind of model."""
    words = [word.lstrip("+") for word in case.plan.overrides]
    preset = f"algorithm={case.plan.choices['algorithm']}"
    typed = any(word.startswith(f"algorithm/{group}=") for word in words)
    if case.is_chain or typed or preset not in words:
        return None
    if facts.reads & {*GAUSSIAN} and case.is_of_texts:
        wanted, such = "flow", "tiny_flow"
    elif facts.of_bounds and TOKENS in facts.refused and domain != BOUNDS:
        wanted, such = "masked-diffusion", "tiny_masked"
    else:
        return None
    return (
        f"{preset} needs a {wanted} model for {_innermost_option(case, group)}, and "
        f"model={case.plan.choices['model']} is none; set such a model, for example model={such}, "
        "or another algorithm"
    )


def _is_judged_elsewhere(case: Case, function: Callable, group: str) -> bool:
    """Whether, in a chain, other functions or the other segment decide about this one."""
    facts = facts_of(function)
    if not case.is_chain or not facts.where_it_can:
        return case.is_chain and bool(facts.segments)
    return any(refusal(function, domain, group) is None for domain in case.domains.values())


def rows_of_data_have_no_steps(case: Case) -> Iterator[str]:
    """A policy gradient needs sampled steps, which rows of data lack."""
    whole = case.domain == PICTURES and case.is_offline
    if whole and case.algorithm.objective == "policy_gradient":
        yield (
            f"algorithm={case.plan.choices['algorithm']} needs log-probabilities of sampled steps; "
            f"{_place(case)} have none; set algorithm=sft"
        )


def numbers_are_of_their_dynamics(case: Case) -> Iterator[str]:
    """Quantities that some dynamics of a domain lack."""
    dynamics, kl = case.plan.dynamics, case.algorithm.kl
    timeless = next((part for part in parts_of(kl) if facts_of(part).of_sde), None)
    if timeless is not None and not case.is_of_texts and not facts_of(dynamics.kernel).of_sde:
        yield (
            f"algorithm/kl={name_of(timeless)} leaves out the duration of an SDE step, and steps "
            f"of dynamics={case.plan.choices['dynamics']} have none; set algorithm/kl=gaussian"
        )
    loss = case.loss_that(lambda facts: facts.reads_density)
    if loss is not None and facts_of(dynamics.logp).unscaled:
        yield (
            f"dynamics/logp={name_of(dynamics.logp)}: {name_of(loss)} needs the "
            "log-density of a step; set dynamics/logp=gaussian"
        )


def _of_velocities(case: Case, group: str, reason: str) -> str:
    """The option to set in place of a KL where velocity errors are known, unless the reason, which
    a plugin may have written, names it."""
    known = group == "kl" and case.algorithm.objective in ON_ERRORS
    if not known or REGRESSED in reason:
        return ""
    link = ", or" if "; set " in reason else "; set"
    return f"{link} {REGRESSED}, a distance between velocities"


def _innermost_option(case: Case, group: str, segment: str | None = None) -> str:
    """The innermost part that is an option of the group, as a user would write it; `segment`: of
    those for its steps."""
    named = [part for part in parts_of(case.parts[group], segment) if facts_of(part).option]
    return f"algorithm/{group}={name_of(named[0])}" if named else f"algorithm.{group}"


def _place(case: Case) -> str:
    dynamics = f"dynamics={case.plan.choices['dynamics']}"
    return f"rows of data under {dynamics}" if case.is_offline else dynamics


RULES = (
    steps_are_sampled,
    functions_make_sense,
    rows_of_data_have_no_steps,
    numbers_are_of_their_dynamics,
)
