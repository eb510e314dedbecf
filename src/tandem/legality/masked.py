"""Contradictions about masked-diffusion models: samplers, likelihoods and what reads them."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import (
    defaults_of,
    facts_of,
    name_of,
    numbers_of,
    parts_of,
    unwrap_partial,
)
from tandem.evaluation.settings import UnmaskedAnswers
from tandem.legality.case import Case
from tandem.legality.units import numbers_of_a_kl
from tandem.record.terminal import line
from tandem.settings.settings import Settings


def likelihoods_are_of_masked_texts(case: Case) -> Iterator[str]:
    """A likelihood of masked texts needs a masked-diffusion model."""
    if case.algorithm.likelihood is None or (case.is_of_texts and not case.sampling.in_time):
        return
    yield (
        f"{case.option('likelihood')} needs a masked-diffusion model, and "
        f"model={case.plan.choices['model']} is none; leave it out"
    )


def what_algorithms_go_by_is_there(case: Case) -> Iterator[str]:
    """An algorithm is refused for a model without a part that the algorithm depends on."""
    for group, part in case.left_out.items():
        if facts_of(part).essential:
            chosen = case.plan.choices
            yield (
                f"algorithm={chosen['algorithm']} depends on {group}={name_of(part)}, and "
                f"model={chosen['model']} has no {group.replace('/', '.')}; set another "
                "algorithm, or a model that has it, such as model=tiny_masked"
            )


def samplers_are_of_their_model(case: Case) -> Iterator[str]:
    """A masked-diffusion model has its own sampler, and no engine samples for it."""
    if not case.is_of_texts:
        return
    wanted, given = case.model.target.samples_by, type(case.sampling)
    if given is not wanted:
        yield (
            f"rollout={case.plan.choices['rollout']} samples by {given.dynamics} steps, but "
            f"model={case.plan.choices['model']} takes {wanted.dynamics} ones; leave rollout out"
        )


def dynamics_are_of_their_sampler(case: Case) -> Iterator[str]:
    """The dynamics of tokens are those of the sampler: autoregressive or masked."""
    if case.is_of_texts and case.plan.dynamics.kind != case.sampling.dynamics:
        yield (
            f"dynamics={case.plan.choices['dynamics']} does not apply to "
            f"model={case.plan.choices['model']}, whose dynamics are {case.sampling.dynamics}; "
            "set dynamics=auto"
        )


def numbers_of_states_are_read(case: Case) -> Iterator[str]:
    """A number that needs a certain value of another one keeps its default without it."""
    usual = defaults_of(unwrap_partial(case.algorithm.likelihood)[0])
    given = numbers_of(case.algorithm.likelihood)
    for number, (other, value) in facts_of(case.algorithm.likelihood).read_with.items():
        if given[number] != usual[number] and given[other] != value:
            key = "algorithm.likelihood"
            yield (
                f"{key}.{number}={given[number]} has no effect with {key}.{other}={given[other]}; "
                f"set {key}.{other}={value}, or {key}.{number}={usual[number]}"
            )


def given_answers_have_no_path(case: Case) -> Iterator[str]:
    """The order in which answers from data were unmasked is unknown."""
    likelihood = case.algorithm.likelihood
    if case.is_offline and likelihood is not None and "when" in facts_of(likelihood).reads:
        yield (
            f"{case.option('likelihood')} reads the steps of the sampler, and here answers come "
            "from data; set algorithm/likelihood=elbo"
        )


def positions_are_in_no_order(case: Case) -> Iterator[str]:
    """A function of the order of steps does not apply to positions filled in any order."""
    if not case.is_of_texts or case.sampling.in_time:
        return
    for group, instead in (("advantage", "group_relative"), ("loss", "ppo")):
        for part in parts_of(case.parts[group]):
            if facts_of(part).in_time:
                yield (
                    f"algorithm/{group}={name_of(part)} depends on the order of steps, and "
                    f"model={case.plan.choices['model']} fills positions in any order; set "
                    f"algorithm/{group}={instead}"
                )


def a_bound_is_of_whole_answers(case: Case) -> Iterator[str]:
    """A KL per position is unknown where a bound on log p of an answer is split over positions: the
    parts have weights of up to half the length, and exp of a part is no ratio of probabilities."""
    if not facts_of(case.algorithm.likelihood).splits_bound:
        return
    why = f"{case.option('likelihood')} gives no KL per position, but a bound on log p of an answer"
    for key, value in numbers_of_a_kl(case.algorithm).items():
        yield f"{key}={value:g}: {why}; set it to null"
    distance = case.algorithm.kl.distance
    if case.algorithm.kl.coef and distance is not None and not facts_of(distance).of_bounds:
        yield (
            f"algorithm/kl={name_of(distance)} compares positions, and {why}; set "
            "algorithm/kl=k2_sequence"
        )


def fewer_steps_can_be_taken(case: Case) -> Iterator[str]:
    """The sampler supports the numbers of steps in evaluation.steps."""
    evaluation = case.plan.evaluation
    numbers = evaluation.steps if isinstance(evaluation, UnmaskedAnswers) else ()
    if numbers and (not case.is_of_texts or case.sampling.in_time):
        yield (
            f"evaluation.steps={list(numbers)}: model={case.plan.choices['model']} is not a "
            "masked-diffusion model; set evaluation.steps=[]"
        )
        return
    for number in numbers:
        if (wanted := case.sampling.violation_of_steps(number)) is not None:
            yield (
                f"evaluation.steps={list(numbers)}: {number} is not possible, as {wanted}; set "
                "evaluation.steps=[] for none"
            )


def notice(algorithm: Algorithm, settings: Settings, sampling: object) -> str | None:
    """The warning about positions chosen by their sampled tokens; None: they are not."""
    likelihood = algorithm.likelihood
    if likelihood is None or settings.dynamics.kernel is not None:
        return None
    if "when" not in facts_of(likelihood).reads or not sampling.chooses_by_candidate:
        return None
    return line(
        "order",
        f"rollout.unmask_order={sampling.unmask_order} chooses positions by their sampled tokens, "
        f"which algorithm/likelihood={name_of(likelihood)} ignores: gradients are biased to likely "
        "tokens; entropy, margin and random are exact",
    )


RULES = (
    what_algorithms_go_by_is_there,
    samplers_are_of_their_model,
    likelihoods_are_of_masked_texts,
    dynamics_are_of_their_sampler,
    numbers_of_states_are_read,
    given_answers_have_no_path,
    positions_are_in_no_order,
    a_bound_is_of_whole_answers,
    fewer_steps_can_be_taken,
)
