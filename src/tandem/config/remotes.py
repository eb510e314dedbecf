"""Addresses and numbers of what runs on another machine, judged before any weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tandem.config.binding import Call
from tandem.config.building import make
from tandem.config.composed import Composed
from tandem.remote import Breaker, Limits, Retries, checked

RECORDS = (Limits, Retries, Breaker)  # that judge their own numbers
GROUPS = ("reward", "rollout")


def remotes_can_be_asked(composed: Composed) -> str | None:
    for group in GROUPS:
        for where, call in _calls(composed.components[group], group):
            try:
                _judge(call, where)
            except ValueError as error:
                return f"{where}.{error}"
    return None


def _judge(call: Call, where: str) -> None:
    """Raises ValueError that names a key below `where`."""
    records = [value for value in call.arguments.values() if isinstance(value, Call)]
    for record in records:
        if record.target in RECORDS:
            make(record)
    if any(record.target is Limits for record in records):
        checked(call.arguments.get("url", ""))


def _calls(value: Any, where: str) -> Iterator[tuple[str, Call]]:
    inside = value.arguments if isinstance(value, Call) else value
    if isinstance(value, Call):
        yield where, value
    for name, item in inside.items() if isinstance(inside, Mapping) else ():
        yield from _calls(item, f"{where}.{name}")
