"""Contradictions between a generator that matches a distribution and its networks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from tandem.algorithm.objective import KL, POLICY
from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

MATCHING = "matching"
SEE = "see algorithm=dmd2, tdm or tdm_r1"
# Names that are taken: other terms of the objective, other optimized parts, module attributes.
TAKEN = frozenset({POLICY, KL, "ema_kl", "entropy", "value", "critic", *dir(nn.ModuleDict())})
OF_PROMPT = ("algorithm.loss.prompt_coef", "algorithm.loss.prompt_scale")


def _matches(case: Case) -> bool:
    return case.algorithm.objective == MATCHING


def losses_of_matching_have_its_objective(case: Case) -> Iterator[str]:
    """A matching loss needs objective=matching, and the objective needs a matching loss."""
    objective, name = case.algorithm.objective, name_of(case.loss)
    if case.loss_facts.matches and not _matches(case):
        yield (
            f"algorithm.objective={objective}: {name} reads the predictions of networks beside the "
            f"policy; set algorithm={name}"
        )
    if _matches(case) and not case.loss_facts.matches:
        yield (
            f"algorithm.objective=matching: {name} reads no predictions of the networks beside "
            "the policy; set algorithm/loss=dmd2 or tdm"
        )


def networks_have_names_of_their_own(case: Case) -> Iterator[str]:
    """The name of a network is an identifier that no other part uses."""
    for name in case.algorithm.networks:
        if not name.isidentifier() or name in TAKEN:
            yield (
                f"algorithm.networks.{name}: names consist of letters, digits and _, and must "
                "not be taken by another part or a module attribute; choose another name"
            )


def networks_are_there_and_read(case: Case) -> Iterator[str]:
    """The networks are exactly those that the loss reads."""
    algorithm, read = case.algorithm, case.loss_facts.networks
    for name in algorithm.networks:
        if not _matches(case):
            yield (
                f"algorithm.networks.{name} is only trained under "
                f"algorithm.objective=matching; set it to null, or {SEE}"
            )
        elif name not in read:
            yield (
                f"algorithm.networks.{name}: {name_of(case.loss)} does not read it; set it to null"
            )
    for name in sorted(read - algorithm.networks.keys()) if _matches(case) else ():
        yield f"algorithm.networks.{name}=null: {name_of(case.loss)} reads its predictions; {SEE}"
    if _matches(case) and algorithm.query is None:
        yield f"algorithm.query=null: no states to query the networks at; {SEE}"


def networks_judge_by_errors(case: Case) -> Iterator[str]:
    """The loss of a network reads the velocity errors of that network."""
    for name, network in case.algorithm.networks.items():
        if not facts_of(network.loss).on_errors:
            yield (
                f"algorithm.networks.{name}.loss={name_of(network.loss)} reads no velocity errors, "
                f"the only output of the {name} network; {SEE}"
            )


def groups_are_at_one_state(case: Case) -> Iterator[str]:
    """A loss that compares the rows of a group needs them at the same states."""
    losses = [case.loss, *(network.loss for network in case.algorithm.networks.values())]
    comparing = [name_of(loss) for loss in losses if facts_of(loss).compares_groups]
    if _matches(case) and comparing and not case.algorithm.every_state:
        yield (
            f"algorithm.every_state=false: {comparing[0]} compares the samples of a prompt "
            "at the same states; set it to true"
        )


def scores_are_read(case: Case) -> Iterator[str]:
    """An advantage needs a loss that reads it."""
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
    """A generator is queried at its sampling guidance; prompt terms need a guided reference."""
    regression = case.algorithm.timestep_sampling
    if not _matches(case) or case.is_of_texts or regression is None:
        return
    own, asked = case.painter[0].arguments.get("guidance_scale"), regression.guidance_scale
    if own != asked:
        yield (
            f"algorithm.timestep_sampling.guidance_scale={asked:g}: the states were sampled at "
            f"rollout.guidance_scale={own:g}; leave it out"
        )
    given = [x for x in case.plan.overrides if x.lstrip("+~").startswith(OF_PROMPT)]
    given += [x for x in case.plan.overrides if _asks_for_guidance(case, x.lstrip("+~"))]
    if given and regression.ref_guidance_scale <= 1:
        yield (
            f"{given[0]}: the reference is not guided, so this has no effect; set "
            "algorithm.timestep_sampling.ref_guidance_scale above 1"
        )


def _asks_for_guidance(case: Case, override: str) -> bool:
    """Whether the override sets `guided` of a network."""
    keys = {
        f"algorithm.networks.{x}.guided" for x, y in case.algorithm.networks.items() if y.guided
    }
    return override.partition("=")[0] in keys


def the_policy_learns_at_times(case: Case) -> Iterator[str]:
    """The policy skips iterations only if networks learn in them, and learns at least once."""
    every, iterations = case.algorithm.policy_every, case.plan.iterations
    if every > 1 and not case.algorithm.networks:
        yield (
            f"algorithm.policy_every={every}: there are no networks to train in between; set it "
            "to 1"
        )
    elif every > iterations:
        yield (
            f"algorithm.policy_every={every} of iterations={iterations} never trains the policy; "
            "set it lower"
        )


def paths_are_those_of_an_ode(case: Case) -> Iterator[str]:
    """Matching needs pictures of the live weights, sampled along the ODE with states kept."""
    if not _matches(case) or case.is_of_texts:
        return
    name, dynamics = case.plan.choices["algorithm"], case.plan.dynamics
    if case.is_offline:
        yield f"algorithm.objective=matching samples pictures, and here rows come from data; {SEE}"
    if case.is_chain:
        yield f"algorithm={name} trains only pictures; set model=tiny_flow or another flow model"
    if not facts_of(dynamics.kernel).noiseless:
        yield (
            f"algorithm={name} on dynamics={case.plan.choices['dynamics']}: it trains a generator "
            "along the ODE, without random steps; set dynamics=ode"
        )
    if dynamics.solver is not None:
        yield (
            "algorithm.objective=matching: a solver keeps no states to train; set "
            "dynamics/solver=euler"
        )
    if case.painter[0].arguments.get("weights", "live") != "live":
        yield "algorithm.rollout_weights: a generator trains on its own pictures; set it to live"


def nothing_else_holds_the_generator(case: Case) -> Iterator[str]:
    """Under matching, only the reference score regularises the policy."""
    algorithm = case.algorithm
    penalties = {"kl": algorithm.kl, "entropy": algorithm.entropy, "ema_kl": algorithm.ema_kl}
    for name, part in penalties.items():
        if _matches(case) and part is not None and not part.is_off:
            yield (
                f"algorithm.{name}.coef: algorithm.objective=matching regularises the policy by "
                "the reference score; set it to 0"
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
