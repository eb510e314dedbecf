"""Parts that a choice put in place of others, and the numbers that were meant for the others.

A preset, a recipe and a model set numbers of the parts that they chose. Where a command line or an
experiment chooses another function for one, such a number stays only if the new function has a
number of that name and both have the same default for it: then it means the same thing, in the
same unit. All others are left out. The number of a function that itself stays, and of which a part
was replaced (the coefficient of another KL), stays too. The run says which it left out and which it
kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.default_element import ResultDefault

Plain = dict[str, Any]
Choices = Mapping[str, str | None]

# Groups whose options choose parts of other groups, or none that a number could be meant for.
PRESETS = ("model", "algorithm", "recipe", "experiment", "sweep")


@dataclass(frozen=True, slots=True)
class Swap:
    """A replaced part: the node at its place before and after, before any other file sets a number
    of it."""

    group: str  # with slashes
    place: str  # with dots
    before: Any
    after: Any
    inner: frozenset[str] = frozenset()  # what a preset chose for places inside the replaced part

    def brings(self, default: ResultDefault) -> bool:
        """Whether a file belongs to the part itself."""
        of_the_part = belongs(default, self.group, self.place)
        return of_the_part and default.override_key not in self.inner


@dataclass(slots=True)
class Numbers:
    """Numbers of replaced parts that presets, recipes and models had set: key -> value."""

    dropped: Plain = field(default_factory=dict)
    kept: Plain = field(default_factory=dict)


def belongs(default: ResultDefault, group: str, place: str) -> bool:
    """Whether a file belongs to the part of a group that stands at a place."""
    package = f"{default.package or ''}."
    return default.config_path.startswith(f"{group}/") or package.startswith(f"{place}.")


def is_hung_in(default: ResultDefault, group: str, place: str) -> bool:
    """Whether a file stands at a place inside a part, and no file of the part asks for it."""
    inside = (default.package or "").startswith(f"{place}.")
    return inside and not (default.parent or "").startswith(f"{group}/")


def list_replaced(
    before: Choices, after: Choices, choices: Sequence[str]
) -> Iterator[tuple[str, str, bool]]:
    """(group, place, whether the option is another one) of the parts that were chosen, the outer
    ones first. `choices`: those of the command line, which may name the option of the preset."""
    typed = keys_of(choices)
    changed = {key for key in after if before.get(key) != after[key]}
    for key in sorted(changed | (typed & after.keys()), key=lambda key: (len(key), key)):
        group, _, place = key.partition("@")
        if group not in PRESETS and not group.startswith("hydra/"):
            place = (place or group.replace("/", ".")).removeprefix("_global_.")
            yield group, place, key in changed


def keys_of(choices: Sequence[str]) -> set[str]:
    """The keys that a command line gives."""
    return {line.lstrip("+").partition("=")[0] for line in choices}


def fit_numbers(content: Plain, swap: Swap, numbers: Numbers) -> Plain:
    """The content of a file, without numbers of the replaced part that do not fit the new one."""
    *path, last = swap.place.split(".")
    outer = content = dict(content)
    for name in path:
        if not isinstance(outer.get(name), dict):
            return content
        outer[name] = outer = dict(outer[name])
    if last not in outer:
        return content
    if isinstance(outer[last], dict) and isinstance(swap.after, dict):
        fits = _Fit(numbers, swap.place)
        outer[last] = fits.of(outer[last], _as_mapping(swap.before), swap.after, same=True)
    elif swap.before != swap.after and outer[last] != swap.after:  # the null of a part left out
        del outer[last]
    return content


@dataclass(frozen=True, slots=True)
class _Fit:
    """The judgement of one node, `place`, and of those below it."""

    numbers: Numbers
    place: str

    def of(self, said: Plain, before: Plain, after: Plain, *, same: bool) -> Plain:
        """`same`: whether the function around this node is the one that the numbers are for."""
        meant = said.get("_target_", before.get("_target_"))
        if meant is not None or "_target_" in after:
            same = meant == after.get("_target_")
        if same and _has_another_part(before, after):
            self.numbers.kept.update(self._beside(said, after))
        if "_target_" in said and said["_target_"] != before.get("_target_"):
            before = {}  # the file chose a function of its own
        kept = {}
        for name, value in said.items():
            inner, other = after.get(name), before.get(name)
            chosen = _chooses_for_the_same(value, other, inner)
            if chosen and (not same or _has_another_part(before, after)):
                function = value["_target_"].rpartition(".")[2]
                self.numbers.kept[f"{self.place}.{name}"] = function
            if not chosen and isinstance(value, dict) and isinstance(inner, dict):
                below = _Fit(self.numbers, f"{self.place}.{name}")
                kept[name] = below.of(value, _as_mapping(other), inner, same=same)
            elif chosen or self._stays(name, value, (other, inner), known=name in after, same=same):
                kept[name] = value
        return kept

    def _beside(self, said: Plain, after: Plain) -> Plain:
        """The numbers of a node that no part of it holds."""
        own = {name: x for name, x in said.items() if not isinstance(after.get(name), dict)}
        return _flatten(self.place, own)

    def _stays(
        self, name: str, value: Any, defaults: tuple[Any, Any], *, known: bool, same: bool
    ) -> bool:
        before, after = defaults
        was_part = isinstance(before, dict) and "_target_" in before
        if same and (not was_part or isinstance(after, dict)):
            return True
        if name.startswith("_"):
            return False
        stays = known and before == after and _is_alike(value, after)
        found = self.numbers.kept if stays else self.numbers.dropped
        found.update(_flatten(f"{self.place}.{name}", value))
        return stays


def _chooses_for_the_same(said: Any, before: Any, after: Any) -> bool:
    """Whether a file puts a function of its own in the place of one that was not replaced."""
    there = function_of(before)
    return there is not None and there == function_of(after) and function_of(said) is not None


def _has_another_part(before: Plain, after: Plain) -> bool:
    """Whether another function stands in one of the places that both have a part in."""
    both = [(before[name], after[name]) for name in before if before[name] and after.get(name)]
    targets = [tuple(_as_mapping(part).get("_target_") for part in pair) for pair in both]
    return any(old != new for old, new in targets)


def _is_alike(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of a default: a null in place of a function is none."""
    kinds = {float if type(one) is int else type(one) for one in (value, default)}
    return len(kinds) == 1


def _as_mapping(node: Any) -> Plain:
    return node if isinstance(node, dict) else {}


def _flatten(key: str, value: Any) -> Plain:
    if not isinstance(value, dict):
        return {key: value}
    inner = (_flatten(f"{key}.{name}", item) for name, item in value.items() if name[0] != "_")
    return {name: item for each in inner for name, item in each.items()}


def select_node(content: Plain, place: str) -> Any:
    """The node at a dotted place; None where there is none."""
    node: Any = content
    for name in place.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return node


def function_of(node: Any) -> str | None:
    """The function that a node is of, if any."""
    return _as_mapping(node).get("_target_")


def may_replace_parts(choices: Sequence[str]) -> bool:
    """Whether a command line may replace a part: presets alone do not."""
    groups = {line.lstrip("+~").partition("=")[0].partition("@")[0] for line in choices}
    return bool(groups - {"model", "algorithm", "recipe", "sweep"})
