"""GenEval, arXiv:2310.11513: whether a detector finds the requested objects, with their counts,
colours and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clauses import Clause, Clauses, find_clauses
from tandem.rewards.objects import Found, direction, select
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, split_known
from tandem.types import Prompt

Objects = Mapping[str, Sequence[Found]]  # objects found, by requested name
# Pictures, uint8 [H, W, 3], and the names to look for in each -> objects, or no answer.
Detector = Callable[[Sequence[Tensor], Sequence[Sequence[str]]], Sequence[Objects | Missing]]
# Pictures, objects found in each, and their name -> a colour for each object.
ColourNamer = Callable[
    [Sequence[Tensor], Sequence[Sequence[Found]], Sequence[str]], list[list[str]]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds for detections. GenEval's numbers."""

    threshold: float = 0.3  # lowest score of a detection that counts
    counting_threshold: float = 0.9  # lowest score for rows whose `tag` is counting
    max_objects: int = 16  # most objects of one name: those of the highest score
    max_overlap: float = 1.0  # intersection over union from which the lower score is dropped


Rule = Callable[[Sequence[Clause], Sequence[Clause], Objects], float]


@batched
@register_reward("geneval", judges="pictures")
class GenEval:
    """`rule` applied to the objects of `detector` and the colours of `colours`.

    A row is one of GenEval's metadata, in the fields of its prompt: `include`, a list of clauses
    {class, count, color, position: [direction, number of another clause]}, `exclude`, a list of
    {class, count}, and `tag`. None for a prompt without `include`; a row that cannot be judged has
    no score, which does not affect others.
    """

    def __init__(
        self,
        detector: Detector,  # model that finds objects in an image
        colours: ColourNamer,  # model that names the colour of an object
        *,
        rule: Rule,  # score of the objects found
        limits: Limits | None = None,  # which detections count
    ) -> None:
        self.detector, self.colours = detector, colours
        self.rule, self.limits = rule, limits or Limits()

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Missing | None]:
        known, scores = split_known([find_clauses(prompt.fields) for prompt in prompts])
        names = [sorted({c.name for c in (*wanted, *never)}) for wanted, never in known.values()]
        found = self.detector([outputs[place] for place in known], names)
        kept: dict[int, dict[str, list[Found]]] = {}
        for place, objects in zip(known, found, strict=True):
            if isinstance(objects, Missing):
                scores[place] = objects
            else:
                kept[place] = self.keep(objects, tag=prompts[place].fields.get("tag"))
        self.add_colours(kept, outputs, known)
        for place, own in kept.items():
            scores[place] = self.rule(*known[place], own)
        return scores

    def add_colours(
        self,
        kept: Mapping[int, dict[str, list[Found]]],
        outputs: Sequence[Tensor],
        clauses: Mapping[int, Clauses],
    ) -> None:
        """Add colours to objects for which a clause names one, in one call for all pictures."""
        asked = [
            (place, name)
            for place, own in kept.items()
            for name in sorted({clause.name for clause in clauses[place][0] if clause.colour})
            if own.get(name)
        ]
        if not asked:
            return
        pictures, names = [outputs[place] for place, _ in asked], [name for _, name in asked]
        told = self.colours(pictures, [kept[place][name] for place, name in asked], names)
        for (place, name), colours in zip(asked, told, strict=True):
            pairs = zip(kept[place][name], colours, strict=True)
            kept[place][name] = [replace(one, colour=colour) for one, colour in pairs]

    def keep(self, objects: Objects, *, tag: str | None) -> dict[str, list[Found]]:
        """The objects that count, by falling score."""
        limits = self.limits
        least = limits.counting_threshold if tag == "counting" else limits.threshold
        options = {"most": limits.max_objects, "max_overlap": limits.max_overlap}
        return {name: select(of_it, least=least, **options) for name, of_it in objects.items()}


def relaxed(
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    objects: Objects,
    *,
    slack: float = 0.1,
) -> float:
    """Flow-GRPO's partial reward, arXiv:2505.05470: the mean of what each clause earns.

    1 - |found - asked| / asked for a count; the same for objects in the colour if the count is
    right, else 0. A wrong direction adds a 0 and a 1, a right one a 1, and one whose other clause
    failed a 0, as in reward_server/gen_eval.py. `exclude` is not read, since counts must be exact.
    At most 1, if all is right; far too many objects score below 0. `slack`: the share of both sizes
    by which two objects must be apart along an axis.
    """
    parts: list[float] = []
    groups: list[Sequence[Found] | None] = []
    for clause in include:
        found = objects.get(clause.name, ())
        earned, right = clause_parts(clause, found, groups, slack=slack)
        parts += earned
        groups.append(found if right else None)
    return sum(parts) / len(parts) if parts else 0.0


def clause_parts(
    clause: Clause,
    found: Sequence[Found],
    groups: Sequence[Sequence[Found] | None],
    *,
    slack: float,
) -> tuple[list[float], bool]:
    """The scores of one clause in `relaxed`, and whether it is met. groups: objects of earlier
    clauses, None for those that failed."""
    parts = [1 - abs(clause.count - len(found)) / clause.count]
    if len(found) != clause.count:
        return (parts if clause.colour is clause.position is None else [*parts, 0.0]), False
    if clause.colour is not None:
        fitting = count_colour(found, clause.colour)
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
    *,
    slack: float = 0.1,
) -> float:
    """1 if GenEval calls a picture correct, else 0: enough objects for each clause, those of the
    highest score with the right colour and direction, and no excluded objects."""
    groups: list[Sequence[Found] | None] = []
    for clause in include:
        found = objects.get(clause.name, ())[: clause.count]
        met = len(found) == clause.count
        if met and clause.colour is not None:
            met = count_colour(found, clause.colour) == clause.count
        if met and clause.position is not None:
            wanted, other = clause.position
            met = groups[other] is not None and stands(found, groups[other], wanted, slack=slack)
        groups.append(found if met else None)
    too_many = any(len(objects.get(clause.name, ())) >= clause.count for clause in exclude)
    return float(None not in groups and not too_many)


def stands(found: Sequence[Found], others: Sequence[Found], wanted: str, *, slack: float) -> bool:
    """Whether each object is in that direction from each of the others."""
    return all(wanted in direction(one, other, slack=slack) for one in found for other in others)


def count_colour(found: Sequence[Found], colour: str) -> int:
    return sum(one.colour == colour for one in found)
