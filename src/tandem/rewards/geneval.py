"""GenEval, arXiv:2310.11513: whether a picture shows the objects that were asked for, as many, in
their colours and at their places, by what a detector finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.objects import SIDES, Found, direction, select
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched
from tandem.types import Prompt

COLOURS = (
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white",
)  # fmt: skip
KEYS = ("class", "count", "color", "position")  # of a clause
Objects = Mapping[str, Sequence[Found]]  # what was found by the name that was asked for
# Pictures, uint8 [H, W, 3], and the names to look for in each -> what is there, or no answer.
Detector = Callable[[Sequence[Tensor], Sequence[Sequence[str]]], Sequence[Objects | Missing]]
# Picture, what was found in it, and its name -> a colour for each.
ColourNamer = Callable[[Tensor, Sequence[Found], str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What counts as found. GenEval's numbers."""

    threshold: float = 0.3  # least score of a detection
    counting_threshold: float = 0.9  # the same for rows whose `tag` is counting
    max_objects: int = 16  # of one name, those of the highest score
    max_overlap: float = 1.0  # intersection over union from which the lower score is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One entry of `include` or `exclude` of a row."""

    name: str
    count: int
    colour: str | None = None
    position: tuple[str, int] | None = None  # direction, and the clause that it is relative to

    @classmethod
    def parse(cls, said: object) -> Clause:
        """Of a row of GenEval's metadata. Raises Missing for what is none."""
        if (fault := find_fault(said)) is not None:
            raise Missing(f"{said!r} is no clause of GenEval: {fault}")
        position = said.get("position")
        return cls(
            name=said["class"],
            count=said["count"],
            colour=said.get("color"),
            position=None if position is None else tuple(position),
        )


def find_fault(said: object) -> str | None:
    """What is wrong with a clause, in words; None: nothing. A key that is null is not there."""
    if not isinstance(said, Mapping):
        return "give class and count"
    given = {key: value for key, value in said.items() if value is not None}
    if unknown := sorted(given.keys() - KEYS):
        return f"{unknown[0]} is none of {', '.join(KEYS)}"
    if not isinstance(given.get("class"), str) or type(given.get("count")) is not int:
        return "give class, a name, and count, a whole number"
    if given["count"] < 1:
        return "count is 1 or more"
    if given.get("color", COLOURS[0]) not in COLOURS:
        return f"color is one of {', '.join(COLOURS)}"
    match given.get("position", (SIDES[0], 0)):
        case [side, int()] if side in SIDES:
            return None
    return f"position is one of {', '.join(SIDES)}, and the number of an earlier clause"


Clauses = tuple[list[Clause], list[Clause]]  # what should be there, and what should not
Colours = Callable[[Sequence[Found], str], list[str]]
Rule = Callable[[Sequence[Clause], Sequence[Clause], Objects, Colours], float]


@batched
@register_reward("geneval", judges="pictures")
class GenEval:
    """What `rule` says of the objects that `detector` finds and the colours that `colours` names.

    A row is one of GenEval's metadata, in the fields of its prompt: `include`, a list of clauses
    {class, count, color, position: [direction, number of another clause]}, `exclude`, a list of
    {class, count}, and `tag`. None for a prompt without `include`; a row that cannot be judged has
    no score, and others keep theirs.
    """

    def __init__(
        self, detector: Detector, colours: ColourNamer, *, rule: Rule, limits: Limits | None = None
    ) -> None:
        self.detector, self.colours = detector, colours
        self.rule, self.limits = rule, limits or Limits()

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Missing | None]:
        clauses = [find_clauses(prompt.fields) for prompt in prompts]
        known = {place: own for place, own in enumerate(clauses) if isinstance(own, tuple)}
        names = [sorted({c.name for c in (*wanted, *never)}) for wanted, never in known.values()]
        found = self.detector([outputs[place] for place in known], names)
        scores: list[float | Missing | None] = [
            None if isinstance(own, tuple) else own for own in clauses
        ]
        for (place, (wanted, never)), objects in zip(known.items(), found, strict=True):
            if isinstance(objects, Missing):
                scores[place] = objects
                continue
            kept = self.keep(objects, tag=prompts[place].fields.get("tag"))
            colours = partial(self.colours, outputs[place])
            scores[place] = self.rule(wanted, never, kept, colours)
        return scores

    def keep(self, objects: Objects, *, tag: str | None) -> Objects:
        """The objects that count, by falling score."""
        limits = self.limits
        least = limits.counting_threshold if tag == "counting" else limits.threshold
        options = {"most": limits.max_objects, "max_overlap": limits.max_overlap}
        return {name: select(of_it, least=least, **options) for name, of_it in objects.items()}


def find_clauses(fields: Mapping[str, Any]) -> Clauses | Missing | None:
    """What a row asks for, or why that cannot be told; None: it asks for nothing."""
    if not fields.get("include"):
        return None
    try:
        return read_clauses(fields)
    except Missing as reason:
        return reason


def read_clauses(fields: Mapping[str, Any]) -> Clauses:
    """What should be there, and what should not. Raises Missing for a clause that is none."""
    given = [fields.get(key) or () for key in ("include", "exclude")]
    if not all(isinstance(own, list | tuple) for own in given):
        raise Missing("`include` and `exclude` are lists of clauses")
    wanted, never = ([Clause.parse(clause) for clause in own] for own in given)
    for number, clause in enumerate(wanted):
        if clause.position and not 0 <= clause.position[1] < number:
            raise Missing(f"the position of clause {number} of `include` names no earlier clause")
    return wanted, never


def relaxed(
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    objects: Objects,
    colours: Colours,
    *,
    slack: float = 0.1,
) -> float:
    """Flow-GRPO's partial reward, arXiv:2505.05470: the mean of what each clause earns.

    1 - |found - asked| / asked for a count, the same of those in the colour where the count is
    right, else 0; a direction that fails adds a 0 and a 1, one that holds a 1, and one whose other
    clause failed a 0, as reward_server/gen_eval.py has it. `exclude` is not read: no count may be
    exceeded. 1 where all is right, at most; far too many objects score below 0. `slack`: the share
    of both sizes by which two objects must be apart along an axis.
    """
    parts: list[float] = []
    groups: list[Sequence[Found] | None] = []
    for clause in include:
        found = objects.get(clause.name, ())
        earned, right = clause_parts(clause, found, groups, colours, slack=slack)
        parts += earned
        groups.append(found if right else None)
    return sum(parts) / len(parts) if parts else 0.0


def clause_parts(
    clause: Clause,
    found: Sequence[Found],
    groups: Sequence[Sequence[Found] | None],
    colours: Colours,
    *,
    slack: float,
) -> tuple[list[float], bool]:
    """What one clause earns in `relaxed`, and whether it is met. groups: what earlier ones found,
    None where they failed."""
    parts = [1 - abs(clause.count - len(found)) / clause.count]
    if len(found) != clause.count:
        return (parts if clause.colour is clause.position is None else [*parts, 0.0]), False
    if clause.colour is not None:
        fitting = colours(found, clause.name).count(clause.colour)
        parts.append(1 - abs(clause.count - fitting) / clause.count)
        if fitting != clause.count:
            return parts, False
    if clause.position is None:
        return parts, True
    wanted, other = clause.position
    if groups[other] is None:
        return [*parts, 0.0], False
    holds = stands(found, groups[other], wanted, slack=slack)
    return ([*parts, 1.0] if holds else [*parts, 0.0, 1.0]), holds


def correct(
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    objects: Objects,
    colours: Colours,
    *,
    slack: float = 0.1,
) -> float:
    """1 where GenEval calls a picture correct, else 0: at least as many of each clause, those of
    the highest score in their colour and direction, and nothing that is excluded."""
    groups: list[Sequence[Found] | None] = []
    for clause in include:
        found = objects.get(clause.name, ())[: clause.count]
        met = len(found) == clause.count
        if met and clause.colour is not None:
            met = colours(found, clause.name).count(clause.colour) == clause.count
        if met and clause.position is not None:
            wanted, other = clause.position
            met = groups[other] is not None and stands(found, groups[other], wanted, slack=slack)
        groups.append(found if met else None)
    too_many = any(len(objects.get(clause.name, ())) >= clause.count for clause in exclude)
    return float(None not in groups and not too_many)


def stands(found: Sequence[Found], others: Sequence[Found], wanted: str, *, slack: float) -> bool:
    """Whether each object stands in that direction of each other one."""
    return all(wanted in direction(one, other, slack=slack) for one in found for other in others)
