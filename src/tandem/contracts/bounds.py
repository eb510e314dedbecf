"""Bounds of a number or a text in its annotation: `width: Annotated[float, above(0)]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

INF = float("inf")


@runtime_checkable
class Limit(Protocol):
    """A condition on a value in its annotation, in addition to the type."""

    def violation(self, value: object) -> str | None:
        """The condition that the value violates, in words; None: it violates none."""


def values_of(given: object) -> list[Any]:
    """The values of a list or tuple; anything else, such as a text, is one value."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return [*given] if several else [given]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An interval for a number, or for each number of a sequence. Other values are not checked."""

    low: float = -INF
    high: float = INF
    open_low: bool = False  # the end is excluded
    open_high: bool = False

    def admits(self, number: float) -> bool:
        """Whether a number lies between the two ends."""
        above = number > self.low if self.open_low else number >= self.low
        return above and (number < self.high if self.open_high else number <= self.high)

    def violation(self, value: object) -> str | None:
        """The violated bound, in words; None: the value is inside, or not a number."""
        judged = [n for n in values_of(value) if type(n) in (int, float)]
        return None if all(map(self.admits, judged)) else f"must {self}"

    def __str__(self) -> str:
        low, high = f"{self.low:g}", f"{self.high:g}"
        if self.high == INF:
            words = {(0, True): "be positive", (0, False): "not be negative"}
            return words.get((self.low, self.open_low)) or (
                f"be {'above' if self.open_low else 'at least'} {low}"
            )
        last = f"below {high}" if self.open_high else f"{high} at most"
        if self.low == -INF:
            return f"be {last}"
        if not (self.open_low or self.open_high):
            return f"lie in {low} ... {high}"
        first = f"be {'above' if self.open_low else 'at least'} {low}"
        return f"{first}, and {last}"


@dataclass(frozen=True, slots=True)
class Rising:
    """Two numbers, the lower one first."""

    said: str

    def violation(self, value: object) -> str | None:
        return None if value is None or value[0] < value[1] else self.said

    def __str__(self) -> str:
        return "rise"


@dataclass(frozen=True, slots=True)
class RegularExpression:
    """A pattern that compiles. Other values than texts are not checked."""

    def violation(self, value: object) -> str | None:
        try:
            re.compile(value if isinstance(value, str) else "")
        except re.error as error:
            return f"is no regular expression: {error}"
        return None

    def __str__(self) -> str:
        return "be a regular expression"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a text must have, such as the placeholders of a template."""

    texts: tuple[str, ...]

    def violation(self, value: object) -> str | None:
        """The pieces that a text must have, in words; None: it has them, or is no text."""
        judged = isinstance(value, str) and not all(text in value for text in self.texts)
        return f"must {self}" if judged else None

    def __str__(self) -> str:
        return f"have {' and '.join(self.texts)}"


def pieces(*texts: str) -> Pieces:
    return Pieces(texts)


def between(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Bound:
    """low <= number <= high, or without an open end."""
    return Bound(low=low, high=high, open_low=open_low, open_high=open_high)


def at_least(low: float) -> Bound:
    return Bound(low=low)


def at_most(high: float) -> Bound:
    return Bound(high=high)


def above(low: float) -> Bound:
    return Bound(low=low, open_low=True)


positive = above(0)
waiting = between(0, 1e9, open_low=True)  # seconds: the largest value of system timers
fraction = between(0, 1)
rising = Rising("give the lower bound and then the upper")
regular_expression = RegularExpression()
