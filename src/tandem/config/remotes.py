"""Addresses, numbers and questions of what runs on another machine, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tandem.config.binding import Call
from tandem.config.building import make
from tandem.config.composed import Composed
from tandem.remote import Breaker, Limits, Retries
from tandem.rewards.chat import Chat
from tandem.rewards.http import HttpReward
from tandem.rewards.template import Template, places_of

# What judges its own numbers and costs nothing to make: nobody is asked yet.
JUDGING = (Limits, Retries, Breaker, Template, Chat, HttpReward)
GROUPS = ("reward", "rollout")


def remotes_can_be_asked(composed: Composed) -> str | None:
    for group in GROUPS:
        for where, call in _calls(composed.components[group], group):
            try:
                if call.target in JUDGING:
                    make(call)
            except ValueError as error:
                return f"{where}.{error}"
    return None


def judges_are_shown_what_they_judge(composed: Composed) -> str | None:
    for where, call in _calls(composed.components["reward"], "reward"):
        template, places = call.arguments.get("template"), places_of(call.target)
        if places is None or not isinstance(template, Call):
            continue
        if (broken := make(template).broken(*places)) is not None:
            return f"{where}.template: {broken}"
    return None


def scales_rise(composed: Composed) -> str | None:
    for where, call in _calls(composed.components["reward"], "reward"):
        scale = call.arguments.get("scale") if places_of(call.target) is not None else None
        if scale is not None and not scale[0] < scale[1]:
            return f"{where}.scale={list(scale)}: give the worst score and then the best"
    return None


def _calls(value: Any, where: str) -> Iterator[tuple[str, Call]]:
    """Innermost first, so that the key of a number is named and not that of what holds it."""
    inside = value.arguments if isinstance(value, Call) else value
    for name, item in inside.items() if isinstance(inside, Mapping) else ():
        yield from _calls(item, f"{where}.{name}")
    if isinstance(value, Call):
        yield where, value


REMOTE_RULES = (remotes_can_be_asked, judges_are_shown_what_they_judge, scales_rise)
