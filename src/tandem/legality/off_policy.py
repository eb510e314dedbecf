"""Contradictions between a loss, its old policy, and samples of older weights or rows of data."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of, name_of, parts_of
from tandem.legality.case import Case

NOTHING = "set algorithm/importance_sampling=none"


def staleness_is_paid_once(case: Case) -> Iterator[str]:
    """Importance sampling beside old log-probabilities of the sampler would correct twice."""
    if not case.corrects:
        return
    correction = case.option("importance_sampling")
    if case.old_policy == "rollout":
        yield (
            f"{correction} beside {case.option('old_logprobs')} would correct for "
            f"the sampler twice; {NOTHING} or algorithm/old_logprobs=recompute"
        )
    if (loss := case.loss_that(lambda facts: "behaviour_logp" in facts.reads)) is not None:
        yield f"{correction}: {name_of(loss)} already corrects for the sampler; {NOTHING}"


def what_is_given_has_no_sampler(case: Case) -> Iterator[str]:
    """Rows of data have no sampler to correct for."""
    if not case.is_offline:
        return
    why = "some rows come from data" if case.samples else "nothing is sampled"
    if case.corrects:
        yield f"{case.option('importance_sampling')}: {why}; {NOTHING}"
    if "behaviour_logp" in facts_of(case.algorithm.old_logprobs).reads:
        yield f"{case.option('old_logprobs')}: {why}; set algorithm/old_logprobs=recompute"


def a_ratio_has_an_old_policy(case: Case) -> Iterator[str]:
    loss = case.loss_that(lambda facts: "old_logp" in facts.reads)
    if case.old_policy == "current" and loss is not None:
        yield (
            f"{case.option('old_logprobs')}: the ratio of {name_of(loss)} would always be 1; "
            "set algorithm/old_logprobs=recompute, or algorithm/loss=reinforce"
        )


def old_log_probabilities_are_read(case: Case) -> Iterator[str]:
    """Losses on velocity errors compare with a snapshot, whatever old log-probabilities are."""
    unread = case.algorithm.reads_errors and case.loss_facts.on_errors
    for override in case.plan.overrides if unread else ():
        if override.lstrip("+~").replace("/", ".").startswith("algorithm.old_logprobs"):
            yield (
                f"{override}: {name_of(case.loss)} reads velocity errors, of snapshots of "
                "algorithm.ema; leave it out"
            )


def old_means_are_those_of_the_old_policy(case: Case) -> Iterator[str]:
    """Means of steps come from the trainer's weights, also if log-probabilities are the sampler's:
    for samples of older weights the two would be of different policies."""
    loss = case.loss_that(lambda facts: "kl_to_old" in facts.reads)
    older = case.sampling.staleness and case.old_policy in ("rollout", "interpolate")
    if older and loss is not None:
        yield (
            f"{case.option('old_logprobs')}: {name_of(loss)} compares with the means of the "
            "trainer's weights before the update, and samples are of older ones; set "
            "rollout.staleness=0, or algorithm/old_logprobs=recompute "
            "algorithm/importance_sampling=token_tis"
        )


def old_samples_have_a_ratio(case: Case) -> Iterator[str]:
    """After the first update a rollout is one of older weights."""
    loss = case.loss_that(lambda facts: facts.on_fresh_samples)
    if loss is None or case.updates == 1 or not case.samples:
        return
    if all(facts_of(own).of_likelihood for own in case.estimators.values()):
        return
    if case.old_policy == "current" and case.corrects:
        return
    yield (
        f"num_minibatches={case.plan.num_minibatches} epochs={case.plan.epochs}: "
        f"{name_of(loss)} has no ratio for samples of older weights; set both to 1, or "
        "algorithm/old_logprobs=current with an algorithm/importance_sampling"
    )


def there_is_somebody_to_imitate(case: Case) -> Iterator[str]:
    """Learning from rows of data needs data that have more than prompts."""
    if not facts_of(case.data.target).prompts_alone:
        return
    name, start = name_of(case.data.target), case.plan.warm_start or []
    if case.is_offline:
        yield (
            f"algorithm={case.plan.choices['algorithm']} learns from rows of data, and data={name} "
            "has only prompts; set other data, or another algorithm"
        )
    elif case.plan.continue_from is None and "algorithm=sft" in start:
        yield (
            f"the warm start [{', '.join(start)}] needs demonstrations, and data={name} has none; "
            "set warm_start=null, or continue_from=RUN"
        )


def given_rows_are_not_normalised(case: Case) -> Iterator[str]:
    """Rows of data have equal scores, of which a comparison or a normalisation leaves nothing."""
    comparing = (facts_of(part).compares for part in parts_of(case.algorithm.advantage))
    if "demonstrations" in case.strategy.reads and not case.samples and any(comparing):
        yield (
            f"{case.option('advantage')} compares scores, and those of demonstrations are equal, "
            "so nothing would be trained; set algorithm/advantage=given"
        )
    if case.is_offline and case.algorithm.normalize_advantages:
        yield (
            "algorithm.normalize_advantages=true turns the equal advantages of rows of data into "
            "0; set it to false"
        )


def given_rows_have_no_samples(case: Case) -> Iterator[str]:
    """Rows of data cannot estimate a KL or an entropy; a velocity distance is valid on them."""
    if not case.is_offline:
        return
    kl = case.algorithm.kl
    if kl.coef and not facts_of(kl.distance).on_errors:
        yield (
            "algorithm.kl.coef: a KL is estimated from the policy's own samples, and here rows "
            "come from data; set it to 0"
        )
    if case.algorithm.entropy.target is not None:
        yield "algorithm.entropy.target needs samples, and here rows come from data; set it to null"


def entropy_is_known(case: Case) -> Iterator[str]:
    if case.engine is None or case.engine.target.reports_entropy:
        return
    need = "needs the entropy of the sampler, which "
    need += f"rollout={case.plan.choices['rollout']} does not report; set"
    if case.algorithm.entropy.target is not None:
        yield f"algorithm.entropy.target {need} it to null, or rollout=local"
    readers = {name: case.parts[name] for name in ("advantage", "truncation_handling")}
    for group, reader in (readers | {"kl/gate": case.algorithm.kl.gate}).items():
        for part in parts_of(reader):
            if "entropy" in facts_of(part).reads:
                yield f"algorithm/{group}={name_of(part)} {need} rollout=local"


def drift_can_be_seen(case: Case) -> Iterator[str]:
    """algorithm.target_kl needs an old policy, and more than one update to stop."""
    if case.algorithm.target_kl is None:
        return
    if case.is_offline or case.old_policy == "current":
        yield "algorithm.target_kl: there is no old policy to measure it from; set it to null"
    if case.updates == 1:
        yield (
            "algorithm.target_kl stops the updates of an iteration early, and there is only one; "
            "set it to null, or num_minibatches or epochs above 1"
        )


def demonstrations_come_alone(case: Case) -> Iterator[str]:
    """There is one demonstration per prompt: group_size is 1."""
    size = case.plan.group_size
    if "demonstrations" in case.strategy.reads and size != 1:
        yield f"group_size={size}: there is one demonstration per prompt; set group_size=1"


RULES = (
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
    a_ratio_has_an_old_policy,
    old_log_probabilities_are_read,
    old_means_are_those_of_the_old_policy,
    old_samples_have_a_ratio,
    there_is_somebody_to_imitate,
    given_rows_are_not_normalised,
    given_rows_have_no_samples,
    entropy_is_known,
    drift_can_be_seen,
    demonstrations_come_alone,
)
