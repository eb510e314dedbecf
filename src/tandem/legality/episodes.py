"""Contradictions between an environment, the sampler and the rewards of its episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tandem.contracts import facts_of, numbers_of
from tandem.environments import About
from tandem.legality.case import Case, unknown
from tandem.legality.samples import datasets_of

INSTEAD = {"truncation_handling": "train", "weights": "token_mean"}


def rewards_of_moves(case: Case) -> list[str]:
    """The names of the rewards that sum those of moves."""
    functions = {name: part.arguments.get("function") for name, part in case.rewards.items()}
    return [name for name, own in functions.items() if own and facts_of(own.target).of_moves]


def moves_are_judged_where_they_are_made(case: Case) -> Iterator[str]:
    """A reward that sums rewards of moves needs an environment that gives them."""
    world, summed = case.environment, rewards_of_moves(case)
    if not case.samples:
        return
    if world is not None and not sums_nothing(world.about, summed, case.rewards):
        return
    for name in summed:
        why = f"reward={name} sums the rewards of moves, and "
        if world is None:
            yield f"{why}there is no environment; set environment, such as environment=hilo"
            continue
        why = f"{why}this environment gives none (About.gives_rewards); "
        if world.about.cost is None:
            yield (
                f"{why}set environment.world.pays=true if its program scores moves, or choose "
                "another reward"
            )
        else:
            yield f"{why}choose another reward beside it, and set environment.world.cost"


def sums_nothing(about: About, summed: Collection[str], rewards: Collection[str]) -> bool:
    """Whether the rewards that sum those of moves are always 0 in a world, and must not be there.
    Where its calls may cost something, other rewards may judge alone, as a sweep over the cost
    does."""
    return not about.gives_rewards and (about.cost is None or {*rewards} <= {*summed})


def costs_are_part_of_a_score(case: Case) -> Iterator[str]:
    """What a world subtracts from rewards of moves has no effect unless a reward sums them."""
    if case.environment is None or not case.samples:
        return
    summed, datasets = rewards_of_moves(case), datasets_of(case.data)
    for name, world in case.environment.parts.items():
        if not world.about.cost:
            continue
        key = "environment" if name is None else f"environment.of.{name}"
        said = (
            f"{key}.world.cost={world.about.cost:g} is subtracted from the rewards of moves, and "
        )
        if not summed:
            wanted = ",".join([*case.rewards, "episode"])
            yield (
                f"{said}no reward sums them; set reward=[{wanted}] or {key}.world.cost=0, or "
                "register a reward of your own that reads them with of_moves=True"
            )
            continue
        for dataset in datasets if name is None else datasets.keys() & {name}:
            named = datasets[dataset].get("rewards")
            if named is not None and not {*summed} & {*named}:
                yield (
                    f"{said}none of data.of.{dataset}.rewards={list(named)} sums them; add "
                    f"{summed[0]}, or set {key}.world.cost=0"
                )


def rewards_of_moves_are_sums(case: Case) -> Iterator[str]:
    """The reward of an episode is the sum over its moves, which a range would break."""
    for name, part in case.rewards.items():
        function, bounds = part.arguments.get("function"), part.arguments.get("range")
        if function is not None and bounds is not None and facts_of(function.target).of_moves:
            yield (
                f"reward.{name}.range={list(bounds)} would map the sum, but rewards stay with "
                f"their moves; set it to null, and scale by reward.{name}.weight"
            )


def episodes_are_played_by_the_newest_weights(case: Case) -> Iterator[str]:
    """An engine that samples ahead of training cannot play episodes."""
    if case.environment is None or case.engine is None or not case.sampling.staleness:
        return
    yield (
        f"rollout.staleness={case.sampling.staleness}: an engine that samples ahead of training "
        f"cannot play the episodes of environment={case.plan.choices['environment']}; set "
        "rollout.staleness=0"
    )


def pictures_of_episodes_are_read_by_the_policy_itself(case: Case) -> Iterator[str]:
    """A server receives the pictures of a prompt, not those between moves."""
    if case.environment is not None and case.environment.about.shows and case.engine is not None:
        yield (
            f"environment={case.plan.choices['environment']} shows pictures between moves, which "
            f"rollout={case.plan.choices['rollout']} does not receive; set rollout=local"
        )


def episodes_have_a_horizon_of_their_own(case: Case) -> Iterator[str]:
    """dynamics.horizon covers one move, not an episode."""
    if case.environment is None or case.environment.max_turns == 1:
        return
    for group in ("truncation_handling", "weights"):
        part = case.parts[group]
        name = facts_of(part).horizon
        if name is not None and numbers_of(part)[name] == case.plan.dynamics.horizon:
            yield (
                f"algorithm.{group}.{name}={case.plan.dynamics.horizon} is the length of one "
                f"move (rollout.max_new_tokens), and an episode has several; set algorithm.{group}."
                f"{name} to the most tokens of an episode, or "
                f"algorithm/{group}={INSTEAD[group]}"
            )


def datasets_have_environments_of_their_own(case: Case) -> Iterator[str]:
    """A mixture of environments names every dataset of the data mixture and no other."""
    played = () if case.environment is None else case.environment.parts
    datasets = datasets_of(case.data)
    if None in played or not played:
        return
    if not datasets:
        yield (
            f"environment={case.plan.choices['environment']} has one environment per dataset, and "
            f"data={case.plan.choices['data']} is not a mixture; set data=mixture, or a single "
            "environment"
        )
        return
    for name in played.keys() - datasets.keys():
        yield f"environment.of.{name}: {unknown('dataset', name, datasets)}"
    for name in datasets.keys() - played.keys():
        yield f"data.of.{name} has no environment; set environment.of.{name}=null for none"


def datasets_are_judged_by_what_they_give(case: Case) -> Iterator[str]:
    """A reward of moves needs an environment that gives rewards in each of its datasets."""
    summed, datasets = {*rewards_of_moves(case)}, datasets_of(case.data)
    for name, world in ({} if case.environment is None else case.environment.parts).items():
        if name not in datasets:
            continue
        named = {*(datasets[name].get("rewards") or case.rewards)}
        if not sums_nothing(world.about, summed, named):
            continue
        for reward in sorted(summed & named):
            yield (
                f"reward={reward} sums the rewards of moves, and the environment of {name} gives "
                f"none; list other rewards in data.of.{name}.rewards"
            )


RULES = (
    moves_are_judged_where_they_are_made,
    costs_are_part_of_a_score,
    rewards_of_moves_are_sums,
    episodes_are_played_by_the_newest_weights,
    pictures_of_episodes_are_read_by_the_policy_itself,
    episodes_have_a_horizon_of_their_own,
    datasets_have_environments_of_their_own,
    datasets_are_judged_by_what_they_give,
)
