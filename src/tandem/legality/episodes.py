"""Contradictions between an environment, who samples, and what judges its episodes."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of, numbers_of
from tandem.legality.case import Case, unknown
from tandem.legality.samples import datasets_of

INSTEAD = {"truncation_handling": "train", "weights": "token_mean"}


def moves_are_judged_where_they_are_made(case: Case) -> Iterator[str]:
    """A reward of moves reads what an environment gave, of which none is no zero."""
    world = case.environment
    if not case.samples or (world is not None and world.about.gives_rewards):
        return
    for name, part in case.rewards.items():
        function = part.arguments.get("function")
        if function is None or not facts_of(function.target).of_moves:
            continue
        why = f"reward={name} sums what an environment gives for moves, and "
        if world is None:
            yield f"{why}there is none; choose one, such as environment=hilo, or another reward"
        else:
            yield (
                f"{why}this one gives nothing (About.gives_rewards); set "
                "environment.world.pays=true if its program judges itself, or choose another reward"
            )


def rewards_of_moves_are_sums(case: Case) -> Iterator[str]:
    """What each move was worth adds up to the number, and not to one that a range maps."""
    for name, part in case.rewards.items():
        function, bounds = part.arguments.get("function"), part.arguments.get("range")
        if function is not None and bounds is not None and facts_of(function.target).of_moves:
            yield (
                f"reward.{name}.range={list(bounds)} would map the sum of what moves were worth, "
                f"and each stands on its own move; set it to null, and reward.{name}.weight"
            )


def episodes_are_played_by_the_newest_weights(case: Case) -> Iterator[str]:
    """An engine that samples ahead of training is asked for answers, not for episodes."""
    if case.environment is None or case.engine is None or not case.sampling.staleness:
        return
    yield (
        f"rollout.staleness={case.sampling.staleness}: an engine that samples ahead of training "
        f"plays no episodes, and environment={case.plan.choices['environment']} has them; set "
        "rollout.staleness=0"
    )


def pictures_of_episodes_are_read_by_the_policy_itself(case: Case) -> Iterator[str]:
    """A server is sent the pictures of a prompt, not those that come later."""
    if case.environment is not None and case.environment.about.shows and case.engine is not None:
        yield (
            f"environment={case.plan.choices['environment']} shows pictures between moves, which "
            f"no server of rollout={case.plan.choices['rollout']} is sent; set rollout=local"
        )


def episodes_have_a_horizon_of_their_own(case: Case) -> Iterator[str]:
    """dynamics.horizon is that of one move."""
    if case.environment is None or case.environment.max_turns == 1:
        return
    for group in ("truncation_handling", "weights"):
        part = getattr(case.algorithm, group)
        name = facts_of(part).horizon
        if name is not None and numbers_of(part)[name] == case.plan.dynamics.horizon:
            yield (
                f"algorithm.{group}.{name}={case.plan.dynamics.horizon} is for one move "
                f"(rollout.max_new_tokens), and an episode has several; set algorithm.{group}."
                f"{name} to the most tokens that the policy writes in an episode, or "
                f"algorithm/{group}={INSTEAD[group]}"
            )


def datasets_have_environments_of_their_own(case: Case) -> Iterator[str]:
    """A mixture of environments names the datasets of the mixture, each of them."""
    played = () if case.environment is None else case.environment.parts
    datasets = datasets_of(case.data)
    if None in played or not played:
        return
    if not datasets:
        yield (
            f"environment={case.plan.choices['environment']} plays each dataset of a mixture in "
            f"an environment of its own, and data={case.plan.choices['data']} is none; take "
            "data=mixture, or the environment itself"
        )
        return
    for name in played.keys() - datasets.keys():
        yield f"environment.of.{name}: {unknown('dataset', name, datasets)}"
    for name in datasets.keys() - played.keys():
        yield f"data.of.{name} has no environment; set environment.of.{name}=null for one answer"


def datasets_are_judged_by_what_they_give(case: Case) -> Iterator[str]:
    """A reward of moves would be 0 for each sample of a dataset whose environment gives none."""
    summed = {
        name
        for name, part in case.rewards.items()
        if (function := part.arguments.get("function")) and facts_of(function.target).of_moves
    }
    datasets = datasets_of(case.data)
    for name, world in ({} if case.environment is None else case.environment.parts).items():
        if name not in datasets or world.about.gives_rewards:
            continue
        named = datasets[name].get("rewards")
        for reward in sorted(summed if named is None else summed.intersection(named)):
            yield (
                f"reward={reward} sums what an environment gives for moves, and that of {name} "
                f"gives nothing; name others in data.of.{name}.rewards"
            )


RULES = (
    moves_are_judged_where_they_are_made,
    rewards_of_moves_are_sums,
    episodes_are_played_by_the_newest_weights,
    pictures_of_episodes_are_read_by_the_policy_itself,
    episodes_have_a_horizon_of_their_own,
    datasets_have_environments_of_their_own,
    datasets_are_judged_by_what_they_give,
)
