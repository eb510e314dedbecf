"""Contradictions between a generator that matches a distribution, and the networks beside it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from tandem.algorithm.objective import KL, POLICY
from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

MATCHING = "matching"
SEE = "see algorithm=dmd2, tdm or tdm_r1"
# Beside them in the terms of the objective, whose losses are logged, and in the optimizer.
TAKEN = frozenset({POLICY, KL, "ema_kl", "entropy", "value", "critic", *dir(nn.ModuleDict())})
OF_PROMPT = ("algorithm.loss.prompt_coef", "algorithm.loss.prompt_scale")


def _matches(case: Case) -> bool:
    return case.algorithm.objective == MATCHING


def losses_of_matching_have_its_objective(case: Case) -> Iterator[str]:
    """Both ways."""
    objective, name = case.algorithm.objective, name_of(case.loss)
    if case.loss_facts.matches and not _matches(case):
        yield (
            f"algorithm.objective={objective}: {name} reads the pictures that networks beside the "
            f"policy expect; set algorithm={name}"
        )
    if _matches(case) and not case.loss_facts.matches:
        yield (
            f"algorithm.objective=matching: {name} reads nothing of the networks beside the "
            "policy; set algorithm/loss=dmd2 or tdm"
        )


def networks_have_names_of_their_own(case: Case) -> Iterator[str]:
    """No name of another part that learns or holds, and one that a module may have."""
    for name in case.algorithm.networks:
        if not name.isidentifier() or name in TAKEN:
            yield (
                f"algorithm.networks.{name}: a network is named by letters, digits and _, and not "
                "as another part of the objective or of a module is; give it another name"
            )


def networks_are_there_and_read(case: Case) -> Iterator[str]:
    """Each is there for a loss, and none for nobody."""
    algorithm, read = case.algorithm, case.loss_facts.networks
    for name in algorithm.networks:
        if not _matches(case):
            yield (
                f"algorithm.networks.{name} learns beside the policy under "
                f"algorithm.objective=matching alone; set it to null, or {SEE}"
            )
        elif name not in read:
            yield (
                f"algorithm.networks.{name}: {name_of(case.loss)} does not read it; set it to null"
            )
    for name in sorted(read - algorithm.networks.keys()) if _matches(case) else ():
        yield f"algorithm.networks.{name}=null: {name_of(case.loss)} reads what it expects; {SEE}"
    if _matches(case) and algorithm.query is None:
        yield f"algorithm.query=null: nobody is asked anything; {SEE}"


def networks_judge_by_errors(case: Case) -> Iterator[str]:
    """What learns beside the policy sees its own velocity errors."""
    for name, network in case.algorithm.networks.items():
        if not facts_of(network.loss).on_errors:
            yield (
                f"algorithm.networks.{name}.loss={name_of(network.loss)} reads no velocity errors, "
                f"and they are all that the {name} network makes; {SEE}"
            )


def groups_are_at_one_state(case: Case) -> Iterator[str]:
    """A state that each row draws for itself is no sample of a group's."""
    losses = [case.loss, *(network.loss for network in case.algorithm.networks.values())]
    comparing = [name_of(loss) for loss in losses if facts_of(loss).compares_groups]
    if _matches(case) and comparing and not case.algorithm.every_state:
        yield (
            f"algorithm.every_state=false: {comparing[0]} compares the samples of a prompt, which "
            "must be at the same states; set it to true"
        )


def scores_are_read(case: Case) -> Iterator[str]:
    """An advantage that is chosen, where no loss reads any."""
    algorithm, losses = case.algorithm, [case.loss]
    losses += [network.loss for network in algorithm.networks.values()]
    if not _matches(case) or not all(facts_of(loss).taught for loss in losses):
        return
    name = name_of(case.loss)
    if algorithm.normalize_advantages:
        yield (f"algorithm.normalize_advantages=true: {name} reads no advantages; set it to false")
    for key, estimator in case.estimators.items():
        if facts_of(estimator).compares is not None:
            yield (
                f"{key.replace('.', '/')}={name_of(estimator)}: {name} reads no advantages; set "
                "algorithm/advantage=given"
            )


def guidance_is_that_of_the_states(case: Case) -> Iterator[str]:
    """A generator is asked as it sampled, and what a prompt adds is of a guided reference."""
    regression = case.algorithm.timestep_sampling
    if not _matches(case) or case.is_of_texts or regression is None:
        return
    own, asked = case.painter[0].arguments.get("guidance_scale"), regression.guidance_scale
    if own != asked:
        yield (
            f"algorithm.timestep_sampling.guidance_scale={asked:g}: the states were come to at "
            f"rollout.guidance_scale={own:g}; leave it out"
        )
    given = [x for x in case.plan.overrides if x.lstrip("+~").startswith(OF_PROMPT)]
    given += [x for x in case.plan.overrides if _asks_for_guidance(case, x.lstrip("+~"))]
    if given and regression.ref_guidance_scale <= 1:
        yield (
            f"{given[0]}: a prompt adds nothing to a reference without guidance; set "
            "algorithm.timestep_sampling.ref_guidance_scale above 1"
        )


def _asks_for_guidance(case: Case, override: str) -> bool:
    """Whether it makes a network be asked as the reference is."""
    keys = {
        f"algorithm.networks.{x}.guided" for x, y in case.algorithm.networks.items() if y.guided
    }
    return override.partition("=")[0] in keys


def the_policy_learns_at_times(case: Case) -> Iterator[str]:
    """Something learns while it rests, and it does not rest for ever."""
    every, iterations = case.algorithm.policy_every, case.plan.iterations
    if every > 1 and not case.algorithm.networks:
        yield (
            f"algorithm.policy_every={every}: nothing learns beside the policy while it rests; set "
            "it to 1"
        )
    elif every > iterations:
        yield (
            f"algorithm.policy_every={every} of iterations={iterations} leaves none to the policy; "
            "set it lower"
        )


def paths_are_those_of_an_ode(case: Case) -> Iterator[str]:
    """Whose states are kept, and who samples them is who is trained."""
    if not _matches(case) or case.is_of_texts:
        return
    name, dynamics = case.plan.choices["algorithm"], case.plan.dynamics
    if case.is_offline:
        yield f"algorithm.objective=matching samples its pictures, and here rows are given; {SEE}"
    if case.is_chain:
        yield f"algorithm={name} trains pictures alone; set model=tiny_flow, or another flow"
    if not facts_of(dynamics.kernel).noiseless:
        yield (
            f"algorithm={name} on dynamics={dynamics.name}: it leads a generator along the ODE, "
            "which takes no random steps; set dynamics=ode"
        )
    if dynamics.solver is not None:
        yield (
            "algorithm.objective=matching: a solver keeps no states to train; set "
            "dynamics/solver=euler"
        )
    if case.painter[0].arguments.get("weights", "live") != "live":
        yield "algorithm.rollout_weights: a generator is judged by its own pictures; set it to live"


def nothing_else_holds_the_generator(case: Case) -> Iterator[str]:
    """The score of the reference does."""
    algorithm = case.algorithm
    penalties = {"kl": algorithm.kl, "entropy": algorithm.entropy, "ema_kl": algorithm.ema_kl}
    for name, part in penalties.items():
        if _matches(case) and part is not None and not part.is_off:
            yield (
                f"algorithm.{name}.coef: under algorithm.objective=matching the score of the "
                "reference holds the policy; set it to 0"
            )


RULES = (
    networks_have_names_of_their_own,
    losses_of_matching_have_its_objective,
    paths_are_those_of_an_ode,
    networks_are_there_and_read,
    networks_judge_by_errors,
    nothing_else_holds_the_generator,
    groups_are_at_one_state,
    scores_are_read,
    guidance_is_that_of_the_states,
    the_policy_learns_at_times,
)
