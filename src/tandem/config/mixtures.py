"""Contradictions between the datasets of a mixture and the rewards that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.names import unknown
from tandem.data.mixture import complaint, mixture


def datasets(composed: Composed) -> dict[str, Mapping[str, Any]]:
    """What each dataset of a mixture was given, by name."""
    data = composed.components["data"]
    of = data.arguments["of"] if isinstance(data, Call) and data.target is mixture else {}
    return {name: one.arguments for name, one in of.items()}


def datasets_have_their_numbers(composed: Composed) -> str | None:
    for name, given in datasets(composed).items():
        numbers = {key: value for key, value in given.items() if key != "data"}
        said = complaint(name, mixed=given["data"].target is mixture, **numbers)
        if said is not None:
            return said
    return None


def datasets_name_their_rewards(composed: Composed) -> str | None:
    named = {name: given.get("rewards") for name, given in datasets(composed).items()}
    rewards = list(composed.components["reward"])
    for name, own in named.items():
        for reward in own or ():
            if reward not in rewards:
                return f"data.of.{name}.rewards: {unknown('reward', reward, rewards)}"
    if not named or None in named.values():
        return None
    idle = [reward for reward in rewards if not any(reward in own for own in named.values())]
    if not idle:
        return None
    return (
        f"reward.{idle[0]} judges no dataset; name it in data.of.{next(iter(named))}.rewards, or "
        "leave it out"
    )


MIXTURE_RULES = (datasets_have_their_numbers, datasets_name_their_rewards)
