"""Clauses of GenEval's rows, arXiv:2310.11513: what a picture should show and what not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.rewards.objects import SIDES
from tandem.rewards.result import Missing

COLOURS = (
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white",
)  # fmt: skip
KEYS = ("class", "count", "color", "position")  # of a clause


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One entry of `include` or `exclude` of a row."""

    name: str
    count: int
    colour: str | None = None
    position: tuple[str, int] | None = None  # direction, and the clause that it is relative to

    @classmethod
    def parse(cls, said: object) -> Clause:
        """A clause of GenEval's metadata. Raises Missing for an invalid one."""
        if (fault := find_fault(said)) is not None:
            raise Missing(f"{said!r} is not a clause of GenEval: {fault}")
        position = said.get("position")
        return cls(
            name=said["class"],
            count=said["count"],
            colour=said.get("color"),
            position=None if position is None else tuple(position),
        )


def find_fault(said: object) -> str | None:
    """The fault of a clause, in words; None: it has none. A null key counts as absent."""
    if not isinstance(said, Mapping):
        return "it must be an object with class and count"
    given = {key: value for key, value in said.items() if value is not None}
    if unknown := sorted(given.keys() - KEYS):
        return f"{unknown[0]} is not one of {', '.join(KEYS)}"
    if not isinstance(given.get("class"), str) or type(given.get("count")) is not int:
        return "class must be a name and count an integer"
    if given["count"] < 1:
        return "count must be at least 1"
    if given.get("color", COLOURS[0]) not in COLOURS:
        return f"color must be one of {', '.join(COLOURS)}"
    match given.get("position", (SIDES[0], 0)):
        case [side, int()] if side in SIDES:
            return None
    return f"position must be one of {', '.join(SIDES)}, and the number of an earlier clause"


Clauses = tuple[list[Clause], list[Clause]]  # what should be there, and what should not


def find_clauses(fields: Mapping[str, Any]) -> Clauses | Missing | None:
    """The clauses of a row, or the reason why they are invalid; None: it has none."""
    if not fields.get("include"):
        return None
    try:
        return read_clauses(fields)
    except Missing as reason:
        return reason


def read_clauses(fields: Mapping[str, Any]) -> Clauses:
    """The clauses of `include` and `exclude`. Raises Missing for an invalid one."""
    given = [fields.get(key) or () for key in ("include", "exclude")]
    if not all(isinstance(own, list | tuple) for own in given):
        raise Missing("`include` and `exclude` must be lists of clauses")
    wanted, never = ([Clause.parse(clause) for clause in own] for own in given)
    for number, clause in enumerate(wanted):
        if clause.position and not 0 <= clause.position[1] < number:
            raise Missing(f"the position of clause {number} of `include` names no earlier one")
    return wanted, never
