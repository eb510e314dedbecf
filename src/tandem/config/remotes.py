"""Checks of remote rewards, judges and engines before weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tandem.config.binding import Call
from tandem.config.building import make
from tandem.contracts import facts_of
from tandem.rewards.template import places_of


def remotes_can_be_asked(components: Mapping[str, Any]) -> Iterator[str]:
    """Messages about invalid settings of remote parts and about incomplete templates of judges."""
    every = (pair for group, component in components.items() for pair in _calls(component, group))
    for where, call in every:
        if not facts_of(call.target).judges_itself:
            continue
        try:
            make(call)
        except ValueError as error:
            yield f"{where}.{error}"
    for where, call in _calls(components.get("reward"), "reward"):
        yield from _judges_are_shown_what_they_judge(where, call)


def _judges_are_shown_what_they_judge(where: str, call: Call) -> Iterator[str]:
    template, places = call.arguments.get("template"), places_of(call.target)
    if places is None:
        return
    if isinstance(template, Call) and (broken := make(template).fault(*places)) is not None:
        yield f"{where}.template: {broken}"
    scale = call.arguments.get("scale")
    if scale is not None and not scale[0] < scale[1]:
        yield f"{where}.scale={list(scale)}: list the worst score first"


def _calls(value: Any, where: str) -> Iterator[tuple[str, Call]]:
    """(key, call), innermost first, so that messages name the most specific key."""
    inside = value.arguments if isinstance(value, Call) else value
    for name, item in inside.items() if isinstance(inside, Mapping) else ():
        yield from _calls(item, f"{where}.{name}")
    if isinstance(value, Call):
        yield where, value
