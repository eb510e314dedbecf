"""Contradictions between a loss, its old policy, and rows of other weights or given ones."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

NOTHING = "set algorithm/importance_sampling=none"


def staleness_is_paid_once(case: Case) -> Iterator[str]:
    """Importance sampling beside old log-probabilities of the sampler would weigh twice."""
    if not case.corrects:
        return
    correction = case.option("importance_sampling")
    if case.old_policy == "rollout":
        yield (
            f"{correction} beside {case.option('old_logprobs')} would weigh the way from the "
            "sampler "
            f"twice; {NOTHING} or algorithm/old_logprobs=recompute"
        )
    if "behaviour_logp" in case.loss_facts.reads:
        yield f"{correction}: {name_of(case.loss)} compares with the sampler itself; {NOTHING}"


def what_is_given_has_no_sampler(case: Case) -> Iterator[str]:
    """Rows of data have no sampler to compare with."""
    if not case.is_offline:
        return
    why = "some rows are given" if case.samples else "nothing is sampled"
    if case.corrects:
        yield f"{case.option('importance_sampling')}: {why}; {NOTHING}"
    if "behaviour_logp" in facts_of(case.algorithm.old_logprobs).reads:
        yield (f"{case.option('old_logprobs')}: {why}; set algorithm/old_logprobs=recompute")


def a_ratio_has_an_old_policy(case: Case) -> Iterator[str]:
    if case.old_policy == "current" and "old_logp" in case.loss_facts.reads:
        yield (
            f"{case.option('old_logprobs')}: the ratio of {name_of(case.loss)} would always be 1; "
            "set "
            "algorithm/old_logprobs=recompute, or algorithm/loss=reinforce"
        )


def old_samples_have_a_ratio(case: Case) -> Iterator[str]:
    """From the second update on a rollout is one of other weights."""
    if not case.loss_facts.on_fresh_samples or case.updates == 1:
        return
    if case.old_policy == "current" and case.corrects:
        return
    yield (
        f"num_minibatches={case.plan.num_minibatches} epochs={case.plan.epochs}: "
        f"{name_of(case.loss)} has no ratio for samples that an update has left behind; set both "
        "to 1, or algorithm/old_logprobs=current, whose correction weighs them"
    )


def there_is_somebody_to_imitate(case: Case) -> Iterator[str]:
    """Of other data than prompts alone only their rows can tell."""
    if not facts_of(case.data.target).prompts_alone:
        return
    name, start = name_of(case.data.target), case.plan.warm_start or []
    if case.is_offline:
        yield (
            f"algorithm={case.plan.choices['algorithm']} learns from rows of data, and data={name} "
            "has prompts alone; take other data, or another algorithm"
        )
    elif case.plan.continue_from is None and "algorithm=sft" in start:
        yield (
            f"the warm start [{', '.join(start)}] needs demonstrations, which data={name} has none "
            "of; set warm_start=null, or continue_from=RUN"
        )


def given_rows_are_not_normalised(case: Case) -> Iterator[str]:
    if case.is_offline and case.algorithm.normalize_advantages:
        yield (
            "algorithm.normalize_advantages=true leaves nothing of rows that are all worth 1; set "
            "it to false"
        )


def given_rows_have_no_samples(case: Case) -> Iterator[str]:
    """A KL estimated from rows of somebody else is none, nor has anybody seen their entropy. A
    distance between velocities is one at any pictures."""
    if not case.is_offline:
        return
    kl = case.algorithm.kl
    if kl.coef and not facts_of(kl.distance).on_errors:
        yield (
            "algorithm.kl.coef: a KL is estimated from the policy's own samples, and here rows are "
            "given; set it to 0"
        )
    if case.algorithm.entropy.target is not None:
        yield "algorithm.entropy.target is compared with samples, and here rows are given"


def entropy_is_known(case: Case) -> Iterator[str]:
    silent = case.engine is not None and not case.engine.target.reports_entropy
    if silent and case.algorithm.entropy.target is not None:
        yield (
            "algorithm.entropy.target is compared with the entropy of what was sampled from, which "
            f"rollout={case.plan.choices['rollout']} does not report; set it to null, or "
            "rollout=local"
        )


def drift_can_be_seen(case: Case) -> Iterator[str]:
    """algorithm.target_kl needs old log-probabilities, and a second update to end."""
    if case.algorithm.target_kl is None:
        return
    if case.is_offline or case.old_policy == "current":
        yield "algorithm.target_kl: there is no old policy to drift from; set it to null"
    if case.updates == 1:
        yield (
            "algorithm.target_kl ends the updates of an iteration, and there is only one; set it "
            "to null, or num_minibatches or epochs above 1"
        )


RULES = (
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
    a_ratio_has_an_old_policy,
    old_samples_have_a_ratio,
    there_is_somebody_to_imitate,
    given_rows_are_not_normalised,
    given_rows_have_no_samples,
    entropy_is_known,
    drift_can_be_seen,
)
