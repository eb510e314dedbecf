"""Contradictions between an advantage and the samples and scores that it compares."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import (
    bound_parts_of,
    facts_of,
    name_of,
    named_rewards_of,
    numbers_of,
    parts_of,
    unwrap_partial,
)
from tandem.legality.case import Case, unknown
from tandem.legality.judges import find_judges

VALUES = {"values", "old_values", "returns"}  # fields that a critic provides


def groups_have_rivals(case: Case) -> Iterator[str]:
    """What compares within groups, an advantage or a sampling strategy, needs two or more."""
    size = case.plan.group_size
    if size > 1 or "pairs" in case.strategy.reads:  # a pair of data is checked as such
        return
    for part in [*case.estimators.values(), *parts_of(case.algorithm.sampling_strategy)]:
        if facts_of(part).compares == "group":
            yield (
                f"group_size={size}: {name_of(part)} compares the samples of a group; "
                "set group_size=2 or more"
            )


def sets_fit_into_groups(case: Case) -> Iterator[str]:
    """pass@k needs groups of k samples or more."""
    size = case.plan.group_size
    for estimator in case.estimators.values():
        facts, name = facts_of(estimator), name_of(estimator)
        if facts.set_size is None:
            continue
        key, k = facts.set_size, numbers_of(estimator)[facts.set_size]
        if not 1 <= k <= size:
            yield (
                f"{key}={k} of {name}: a group of group_size={size} has no set of {k} samples; set "
                f"{key} to 1 ... {size}"
            )
        if k == size and facts.whole_group_is_no_set:
            yield (
                f"{key}={k} of {name}: a set is the whole group of group_size={size}; set "
                f"{key} to {size - 1} or less"
            )


def samples_with_one_ratio_have_one_advantage(case: Case) -> Iterator[str]:
    """A loss with one ratio per sample would average advantages that differ between its steps."""
    loss = case.loss_that(lambda facts: facts.per == "sample")
    for estimator in () if loss is None else case.estimators.values():
        facts = facts_of(estimator)
        if facts.in_time or (facts.taught and not facts.neutral):
            yield (
                f"{name_of(estimator)} gives an advantage per step, and {name_of(loss)} has one "
                "ratio per sample; set algorithm/loss=gspo_token, or an advantage per sample such "
                "as algorithm/advantage=batch_relative"
            )


def values_have_a_critic(case: Case) -> Iterator[str]:
    """A critic and a part that reads its values come together."""
    critic = case.algorithm.critic
    reading = [
        (group, name_of(part))
        for group, parts in case.parts.items()
        for part in bound_parts_of(None if group == "critic" else parts)
        if facts_of(part).reads & VALUES
    ]
    if critic is None and reading:
        group, name = reading[-1]  # of an advantage the innermost
        yield (
            f"algorithm.critic=null: {name} reads the values of a critic; use the one of "
            f"algorithm=ppo, or another algorithm/{group}"
        )
    if critic is not None and not reading:
        yield (
            "algorithm.critic learns values that no advantage reads; set algorithm.critic=null or "
            "algorithm/advantage=gae"
        )


def rewards_are_weighed_once(case: Case) -> Iterator[str]:
    """Estimators that compare each reward separately have their own weights."""
    for key, estimator in case.estimators.items():
        if not facts_of(estimator).by_reward or numbers_of(estimator).get("weights") is not None:
            continue
        for name, reward in case.rewards.items():
            if (weight := reward.arguments.get("weight", 1.0)) not in (0.0, 1.0):
                yield (
                    f"reward.{name}.weight={weight}: {name_of(estimator)} compares each reward "
                    "separately and ignores weights of the sum; set it to 1, and "
                    f"{key}.weights={{{name}:{weight},...}}"
                )


def weights_are_those_of_the_trained_rewards(case: Case) -> Iterator[str]:
    """Weights by name, where they are given, are complete and name no other reward."""
    if case.plan.evaluate:
        return
    for key, estimator in case.estimators.items():
        weights = numbers_of(estimator).get("weights")
        if weights is None or not facts_of(estimator).by_reward:
            continue
        for name in weights:
            if name not in case.rewards:
                yield f"{key}.weights: {unknown('reward', name, case.rewards)}"
        for name in case.rewards:
            if name not in weights and name not in find_judges(case):
                yield (
                    f"{key}.weights: {name} is trained and has no weight; add {name}:1, or set "
                    f"reward.{name}.weight=0"
                )


def some_advantage_counts(case: Case) -> Iterator[str]:
    """The weights of rewards, or the coefficients of a sum of advantages, are not all 0."""
    if case.plan.evaluate:
        return
    called = [*parts_of(case.algorithm.advantage)]
    if not any(unwrap_partial(one)[0] in called for one in case.estimators.values()):
        share = next(iter(case.estimators)).rpartition(".")[0]
        yield f"{share}.coef=0, like that of all shares, trains nothing; set {share}.coef=1"
    for key, estimator in case.estimators.items():
        weights = numbers_of(estimator).get("weights")
        if facts_of(estimator).by_reward and weights and not any(weights.values()):
            name = next(iter(weights))
            yield f"{key}.weights: all are 0, so nothing is trained; set {key}.weights.{name}=1"


def scores_stay_in_their_domain(case: Case) -> Iterator[str]:
    """An advantage defined for scores of at least 0 excludes penalties that make them negative."""
    limits = ((e, facts_of(e).rewards) for e in case.estimators.values())
    strict = next((e for e, limit in limits if limit is not None and not limit.admits(-1)), None)
    ranged = [n for n, r in case.rewards.items() if r.arguments.get("range")]
    broken = case.shaping or (f"reward.{ranged[0]}.range" if ranged else None)
    if strict is not None and broken is not None:
        yield (
            f"{broken} makes scores negative, and {name_of(strict)} needs rewards of at least "
            "0; leave it out, or set algorithm/advantage=group_relative"
        )


def what_shaping_takes_is_read(case: Case) -> Iterator[str]:
    """A penalty lowers the total, which estimators of separate rewards never read."""
    by_part = [name_of(e) for e in case.estimators.values() if facts_of(e).by_reward]
    if case.shaping is not None and by_part:
        yield (
            f"{case.shaping} lowers the sum of the rewards, which {by_part[0]} does not read; set "
            "algorithm/truncation_handling=train or mask and algorithm/kl=auto"
        )


def named_rewards_are_there(case: Case) -> Iterator[str]:
    """An advantage or a KL gate that reads rewards by name needs those rewards."""
    gate = case.algorithm.kl.gate
    parts = case.estimators | ({} if gate is None else {"algorithm.kl.gate": gate})
    for key, part in parts.items():
        for number, name in named_rewards_of(part):
            if name not in case.rewards:
                yield (
                    f"{key}.{number}={name}: there is no such reward, only "
                    f"{', '.join(case.rewards)}; add it to reward=[...]"
                )


def a_gate_is_open_for_some_kl(case: Case) -> Iterator[str]:
    """A gate or a renewed reference needs a KL whose coefficient is above 0."""
    kl = case.algorithm.kl
    given = {"gate": kl.gate, "renew_every": kl.renew_every, "renew_above": kl.renew_above}
    for name, value in given.items():
        if kl.is_off and value is not None:
            yield f"algorithm.kl.coef=0 disables the KL of algorithm.kl.{name}; set it above 0"
    if kl.gate is not None and kl.kl_target is not None:
        yield (
            f"algorithm.kl.kl_target={kl.kl_target:g} steers the mean KL of all samples, and "
            f"algorithm/kl/gate={name_of(kl.gate)} applies it to a part; set "
            "algorithm.kl.kl_target=null, or ~algorithm/kl/gate"
        )
    if kl.renewal is not None and "ref_logp" in case.algorithm.needs:
        why = (
            "the reference of a language model cannot be renewed"
            if case.is_of_texts
            else "reference log-probabilities are computed once per iteration, with the initial "
            "weights"
        )
        yield (
            f"algorithm.kl.renew_every and renew_above: {why}; set algorithm.kl.renew_every=null "
            "and algorithm.kl.renew_above=null"
        )


RULES = (
    named_rewards_are_there,
    a_gate_is_open_for_some_kl,
    groups_have_rivals,
    sets_fit_into_groups,
    samples_with_one_ratio_have_one_advantage,
    values_have_a_critic,
    rewards_are_weighed_once,
    weights_are_those_of_the_trained_rewards,
    some_advantage_counts,
    scores_stay_in_their_domain,
    what_shaping_takes_is_read,
)
