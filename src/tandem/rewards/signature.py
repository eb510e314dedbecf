"""Call signatures of rewards: one sample, a batch, a group, or two samples of a group.

A declaration decorates a function or a class; `@batched` combines with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Protocol, TypeVar, overload

from torch import Tensor

from tandem.contracts import declare, facts_of
from tandem.rewards.result import Missing, copy_of, number_of, one_each
from tandem.types import Prompt

Function = TypeVar("Function", bound=Callable)
Item = TypeVar("Item")
Rows = tuple[int, ...]  # the samples of one call


def batched(function: Function) -> Function:
    """Mark a reward that takes lists: (outputs, prompts) -> a number or None for each.

    The numbers are in the order of the outputs, or a mapping from position to number.
    """
    return declare(batched=True)(function)


@overload
def waits(function: Function) -> Function: ...
@overload
def waits(*, at_once: int) -> Callable[[Function], Function]: ...
def waits(function: Function | None = None, *, at_once: int = 1) -> Callable:
    """Mark a reward that waits for other machines or processes, such as a server.

    It is called in its own thread, concurrently with other rewards and with sampling;
    `@waits(at_once=16)` uses 16 threads, so that up to 16 calls wait at the same time. A reward
    that computes gains nothing from this.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once} of @waits must be at least 1")

    mark = declare(waits=at_once)
    return mark if function is None else mark(function)


def groupwise(function: Function) -> Function:
    """Mark a reward that sees a group: (outputs, prompt) -> a number or None for each output."""
    return declare(asks=Groups(), takes=("outputs", "prompt"))(function)


@overload
def pairwise(function: Function) -> Function: ...
@overload
def pairwise(*, both_orders: bool) -> Callable[[Function], Function]: ...
def pairwise(function: Function | None = None, *, both_orders: bool = False) -> Callable:
    """Mark a reward that compares: (first, second, prompt) -> the probability that the first is
    better, 0 to 1, or None.

    The score of a sample is its mean probability to win against the others of its group; None if
    all are None or there are no others. A pair that fails leaves both its samples without a score.
    Judges favour a position: with `both_orders` every pair is compared twice. Otherwise each sample
    comes first in half of its pairs, up to one.
    """

    mark = declare(asks=Pairs(both_orders=both_orders), takes=("first", "second", "prompt"))
    return mark if function is None else mark(function)


class Signature(Protocol):
    """The samples that one call of a function scores."""

    def questions(self, groups: Sequence[Sequence[int]]) -> list[Rows]:
        """The rows of each call. `groups`: the rows of each group."""

    def arguments(self, outputs: Sequence, prompts: Sequence[Prompt], rows: Rows) -> tuple:
        """The arguments of one call."""

    def verdicts(
        self, questions: Sequence[Rows], answers: Sequence[object], count: int
    ) -> list[object]:
        """One result for each of `count` rows: a number, None, or the fault."""


class Groups:
    """All samples of a group in one call."""

    def questions(self, groups: Sequence[Sequence[int]]) -> list[Rows]:
        return [tuple(rows) for rows in groups]

    def arguments(self, outputs: Sequence, prompts: Sequence[Prompt], rows: Rows) -> tuple:
        return [copy_of(outputs[row]) for row in rows], copy_of(prompts[rows[0]])

    def verdicts(
        self, questions: Sequence[Rows], answers: Sequence[object], count: int
    ) -> list[object]:
        verdicts: list[object] = [None] * count
        for rows, answer in zip(questions, answers, strict=True):
            for row, value in zip(rows, one_each(answer, len(rows)), strict=True):
                verdicts[row] = value
        return verdicts


class Pairs:
    """Two samples of a group, for all pairs or for all pairs in both orders."""

    def __init__(self, *, both_orders: bool) -> None:
        self.both_orders = both_orders

    def questions(self, groups: Sequence[Sequence[int]]) -> list[Rows]:
        return [pair for rows in groups for pair in self._pairs(rows)]

    def _pairs(self, rows: Sequence[int]) -> list[Rows]:
        places = combinations(range(len(rows)), 2)
        if self.both_orders:
            places = [order for i, j in places for order in ((i, j), (j, i))]
        else:  # cyclically, each comes first against the following half
            places = [(i, j) if 2 * (j - i) <= len(rows) else (j, i) for i, j in places]
        return [(rows[first], rows[second]) for first, second in places]

    def arguments(self, outputs: Sequence, prompts: Sequence[Prompt], rows: Rows) -> tuple:
        first, second = (copy_of(outputs[row]) for row in rows)
        return first, second, copy_of(prompts[rows[0]])

    def verdicts(
        self, questions: Sequence[Rows], answers: Sequence[object], count: int
    ) -> list[object]:
        said: list[list[object]] = [[] for _ in range(count)]
        for (first, second), answer in zip(questions, answers, strict=True):
            won, lost = chances(answer)
            said[first].append(won)
            said[second].append(lost)
        return [mean_chance(of_row) for of_row in said]


def chances(answer: object) -> tuple[object, object]:
    """The probabilities of the first and the second; an invalid answer applies to both."""
    number, reason = number_of(answer)
    if reason is not None:
        return answer, answer
    if not 0 <= number <= 1:
        fault = Missing(f"gave a preference of {number:g}, outside 0 to 1")
        return fault, fault
    return number, 1 - number


def mean_chance(said: Sequence[object]) -> object:
    """The mean of the numbers; None if there is none, and the first fault if there is any."""
    numbers = [one for one in said if isinstance(one, float)]
    faults = [one for one in said if one is not None and number_of(one)[0] is None]
    if faults:
        return faults[0]
    return sum(numbers) / len(numbers) if numbers else None


def compares(component: Callable) -> bool:
    """Whether a reward cannot score a single sample."""
    return facts_of(component).asks is not None


def rows_of_groups(group: Tensor | None, count: int) -> list[list[int]]:
    """The rows of each group, both in order of appearance; None: each row is its own group.

    `group`: [B] int64.
    """
    places: dict[int, list[int]] = {}
    for row, one in enumerate(range(count) if group is None else group.tolist()):
        places.setdefault(one, []).append(row)
    return list(places.values())


def split_known(rows: Sequence[Item | Missing | None]) -> tuple[dict[int, Item], list[Any]]:
    """The rows that can be judged by their places, and the scores of all rows: so far the reasons
    why the others have none."""
    unknown = {i: row for i, row in enumerate(rows) if row is None or isinstance(row, Missing)}
    known = {i: row for i, row in enumerate(rows) if i not in unknown}
    return known, [unknown.get(place) for place in range(len(rows))]
