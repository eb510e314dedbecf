"""Contradictions about judges: rewards of weight 0, which are measured and never trained."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of, numbers_of, rewards_read_by
from tandem.legality.case import Case, unknown
from tandem.legality.samples import datasets_of


def some_reward_is_trained(case: Case) -> Iterator[str]:
    """At least one reward has a weight other than 0."""
    if case.learns_from_scores and case.rewards.keys() == find_judges(case):
        yield (
            "every reward has weight 0, so nothing is trained; set a weight, for example "
            f"reward.{next(iter(case.rewards))}.weight=1"
        )


def some_reward_of_each_dataset_is_trained(case: Case) -> Iterator[str]:
    """Each dataset has at least one reward that is trained on."""
    if not case.learns_from_scores:
        return
    for name, given in datasets_of(case.data).items():
        own = given.get("rewards")
        if own and {*own} <= find_judges(case):
            yield (
                f"data.of.{name}.rewards: all have weight 0, so its samples train nothing; list "
                f"another reward, or set reward.{own[0]}.weight=1"
            )


def judges_weigh_nothing(case: Case) -> Iterator[str]:
    """An estimator that weights rewards itself gives no weight to a judge."""
    for key, estimator in case.estimators.items():
        if not facts_of(estimator).by_reward:
            continue
        weighed = numbers_of(estimator).get("weights") or {}
        for name in find_judges(case) & weighed.keys():
            yield (
                f"{key}.weights: reward.{name}.weight=0 keeps {name} out of training; drop it "
                f"from the weights, or set reward.{name}.weight=1"
            )


def only_judges_rest(case: Case) -> Iterator[str]:
    """A reward that training reads is computed in every iteration."""
    read = dict.fromkeys(rewards_read_by(case.algorithm), "the algorithm needs it")
    read |= dict.fromkeys(case.rewards.keys() - find_judges(case), "training needs it")
    for name, reward in case.rewards.items():
        every = reward.arguments.get("every", 1)
        if every > 1 and name in read:
            yield f"reward.{name}.every={every}: {read[name]} in every iteration; set it to 1"


def named_judges_are_judges(case: Case) -> Iterator[str]:
    """A judge is a reward that is not trained on."""
    read = rewards_read_by(case.algorithm)
    for name in case.plan.guards.judges:
        if name not in case.rewards:
            yield f"guards.judges: {unknown('reward', name, case.rewards)}"
            continue
        if name in read:
            yield f"guards.judges: the algorithm trains on {name}; leave it out"
        elif name not in find_judges(case):
            yield f"guards.judges: {name} is trained; set reward.{name}.weight=0, or leave it out"


def a_run_is_stopped_by_a_judge(case: Case) -> Iterator[str]:
    """Stopping on reward hacking needs a judge and evaluations."""
    wanted = case.plan.guards.hacking
    if wanted is None or not wanted.startswith("stop"):
        return
    if not case.plan.guards.judges:
        yield (
            f"guards.hacking={wanted} needs a judge, and there is none; list a reward of weight 0 "
            "(higher is better) in guards.judges=[...], or set guards.hacking=warn"
        )
    if case.plan.evaluation.every is None:
        yield (
            f"guards.hacking={wanted} needs evaluations, and evaluation.every=null disables them; "
            "set evaluation.every, or guards.hacking=warn"
        )


def find_judges(case: Case) -> set[str]:
    """The names of the rewards of weight 0."""
    return {n for n, reward in case.rewards.items() if reward.arguments.get("weight", 1.0) == 0}


RULES = (
    some_reward_is_trained,
    some_reward_of_each_dataset_is_trained,
    judges_weigh_nothing,
    only_judges_rest,
    named_judges_are_judges,
    a_run_is_stopped_by_a_judge,
)
