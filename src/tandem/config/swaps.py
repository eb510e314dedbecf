"""Replaced parts, and the numbers that were set for the parts that they replace.

Presets, recipes and models set numbers of the parts that they choose. If a command line or an
experiment chooses another function, such a number stays only if the new function has a number of
that name with the same default: then it has the same meaning and unit. All others are dropped. If
only an inner part of a function was replaced (another KL), the numbers of the function itself (its
coefficient) stay. An option that only changes numbers of the same function keeps those that it
changes. Numbers that an option sets beside its part, such as the scale of a clip, are dropped with
the function that they were set for. The run reports what it dropped and what it kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.default_element import ResultDefault

from tandem.config.files import Plain
from tandem.config.plain import target_of

Choices = Mapping[str, str | None]

# Groups whose options choose parts of other groups, or have no numbers.
PRESETS = ("model", "algorithm", "recipe", "experiment", "sweep")


@dataclass(frozen=True, slots=True)
class Swap:
    """A replaced part: the nodes before and after, without the numbers that other files set."""

    group: str  # with slashes
    place: str  # with dots
    before: Any
    after: Any
    inner: frozenset[str] = frozenset()  # choices of a preset inside the replaced part
    beside: frozenset[str] = frozenset()  # numbers that its option sets beside its place

    def brings(self, default: ResultDefault) -> bool:
        """Whether a file belongs to the part itself."""
        of_the_part = belongs(default, self.group, self.place)
        return of_the_part and default.override_key not in self.inner


@dataclass(slots=True)
class Numbers:
    """Numbers of replaced parts that presets, recipes and models set: key -> value."""

    dropped: Plain = field(default_factory=dict)
    kept: Plain = field(default_factory=dict)


def belongs(default: ResultDefault, group: str, place: str) -> bool:
    """Whether a file belongs to the part of a group at a place."""
    package = f"{default.package or ''}."
    return default.config_path.startswith(f"{group}/") or package.startswith(f"{place}.")


def is_hung_in(default: ResultDefault, group: str, place: str) -> bool:
    """Whether a file is placed inside a part, and no file of the part includes it."""
    inside = (default.package or "").startswith(f"{place}.")
    return inside and not (default.parent or "").startswith(f"{group}/")


def list_replaced(
    before: Choices, after: Choices, choices: Sequence[str]
) -> Iterator[tuple[str, str, bool]]:
    """(group, place, whether the option changed) of the chosen parts, outer ones first. `choices`
    of the command line may repeat the option of the preset."""
    typed = keys_of(choices)
    changed = {key for key in after if before.get(key) != after[key]}
    changed |= typed & (before.keys() - after.keys())  # a list of options is no known choice
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
    if target_of(outer[last]) not in (None, target_of(swap.after)):
        for name in sorted(swap.beside & outer.keys()):  # set for the function of the file
            numbers.dropped[".".join([*path, name])] = outer.pop(name)
    if isinstance(outer[last], dict) and isinstance(swap.after, dict):
        fits = _Fit(numbers, swap.place)
        outer[last] = fits.of(outer[last], _as_mapping(swap.before), swap.after, same=True)
    elif swap.before != swap.after and outer[last] != swap.after:  # null: the part was left out
        del outer[last]
    return content


@dataclass(frozen=True, slots=True)
class _Fit:
    """The selection of numbers for the node at `place`, and for those below it."""

    numbers: Numbers
    place: str

    def of(self, said: Plain, before: Plain, after: Plain, *, same: bool) -> Plain:
        """The numbers to keep. `same`: the enclosing function is the one that they were set for."""
        meant = said.get("_target_", before.get("_target_"))
        if meant is not None or "_target_" in after:
            same = meant == after.get("_target_")
        if same and _has_another_part(before, after):
            self.numbers.kept.update(self._own_numbers(said, after))
        if "_target_" in said and said["_target_"] != before.get("_target_"):
            before = {}  # the file chose another function
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
            elif chosen or self._stays(name, value, before, after, same=same):
                kept[name] = value
        return kept

    def _own_numbers(self, said: Plain, after: Plain) -> Plain:
        """The numbers of a node itself, without those of its parts."""
        own = {name: x for name, x in said.items() if not isinstance(after.get(name), dict)}
        return _flatten(self.place, own)

    def _stays(self, name: str, value: Any, before: Plain, after: Plain, *, same: bool) -> bool:
        other, inner = before.get(name), after.get(name)
        stated = name in after and other != inner  # by the option itself
        changed = stated and bool(before) and _differ_in_numbers(before, after)
        if same and not changed and (isinstance(inner, dict) or target_of(other) is None):
            return True
        if name.startswith("_"):
            return False
        stays = name in after and other == inner and _is_alike(value, inner)
        found = self.numbers.kept if stays else self.numbers.dropped
        found.update(_flatten(f"{self.place}.{name}", value))
        return stays


def _differ_in_numbers(before: Plain, after: Plain) -> bool:
    """Whether two nodes consist of the same parts."""
    old, new = ({name: target_of(x) for name, x in node.items()} for node in (before, after))
    return all(old.get(name) == new.get(name) for name in old | new)


def _chooses_for_the_same(said: Any, before: Any, after: Any) -> bool:
    """Whether a file chooses the function at a place that was not replaced."""
    there = target_of(before)
    return there is not None and there == target_of(after) and target_of(said) is not None


def _has_another_part(before: Plain, after: Plain) -> bool:
    """Whether a part that both nodes have is another function."""
    both = [(before[name], after[name]) for name in before if before[name] and after.get(name)]
    targets = [tuple(map(target_of, pair)) for pair in both]
    return any(old != new for old, new in targets)


def _is_alike(value: Any, default: Any) -> bool:
    """Whether a value has the type of a default; int counts as float."""
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
        node = _as_mapping(node).get(name)
    return node


def may_replace_parts(choices: Sequence[str]) -> bool:
    """Whether a command line may replace parts: choosing presets alone does not."""
    groups = {line.lstrip("+~").partition("=")[0].partition("@")[0] for line in choices}
    return bool(groups - {"model", "algorithm", "recipe", "sweep"})
