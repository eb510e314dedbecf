"""Faults of rewards, their consequences, and the table of both in docs/rewards.md."""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tandem.rewards import Reward, Rewards, batched, groupwise, pairwise
from tandem.types import Prompt, Scores

PAGE = Path(__file__).parents[1] / "docs" / "rewards.md"
BEGIN, END = "<!-- make faults: begin -->\n", "<!-- make faults: end -->\n"
PROMPTS = [Prompt(id=i, source="s", text="?", fields={"known": [i]}) for i in range(4)]
OUTPUTS = ["a", "b", "c", "d"]
GOOD = [0.0, 1.0, 2.0, 3.0]  # the scores without the fault; a second reward gives 10


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A reward of four samples with a fault, its scores, and why the others have none."""

    does: str
    function: Callable
    comes: str  # the consequence, in words
    gives: Sequence[float | None]  # the score of each sample; None: it has none
    reason: str | None  # the counted reason; None: none is counted
    count: int = 0  # of the reason
    options: Mapping[str, object] = field(default_factory=dict)

    def scores(self) -> tuple[Scores, dict[str, int]]:
        """In a sum with another reward, which must stay unaffected."""
        other = Reward(lambda output, prompt: 10.0 if prompt.fields["known"] else None)
        rewards = Rewards({"odd": Reward(self.function, **self.options), "fine": other})
        group = torch.tensor([0, 0, 1, 1])
        return rewards(OUTPUTS, PROMPTS, group), rewards.pop_faults()


def second(how: Callable[[], object]) -> Callable:
    """A function of a sample that calls `how` for the second one."""
    return lambda output, prompt: how() if prompt.id == 1 else float(prompt.id)


def giving(value: object) -> Callable:
    return second(lambda: value)


def of_two(how: Callable[[list[float]], object]) -> Callable:
    """A batched function that applies `how` to the scores of the batch with the second sample."""

    @batched
    def function(outputs, prompts):
        numbers = [float(prompt.id) for prompt in prompts]
        return how(numbers) if 1.0 in numbers else numbers

    return function


def never() -> None:
    threading.Event().wait()


def divide() -> float:
    return 1 / 0


def interrupt() -> float:
    raise KeyboardInterrupt


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def say_nothing() -> float:
    raise Speechless


class Small(float):
    """A number whose absolute value claims to be 0."""

    def __abs__(self) -> float:
        return 0.0


def leave() -> float:
    sys.exit(0)


def leave_at_once() -> float:
    os._exit(0)


def in_pairs(first: str, second: str, prompt: Prompt) -> float:
    return divide() if "a" in (first, second) else 0.25


def in_groups(outputs: list[str], prompt: Prompt) -> list[float]:
    return [5.0] if "a" in outputs else [2.0, 3.0]


def scribbles(output: str, prompt: Prompt) -> float:
    prompt.fields["known"].clear()
    return float(prompt.id)


ONE = [10.0, None, 12.0, 13.0]
TWO = [None, None, 12.0, 13.0]
ALL = [10.0, 11.0, 12.0, 13.0]
THE_SAMPLE = "the sample has no score"
THE_BATCH = "its batch has no score"
NOT_FINITE = "gave a number that is not finite or over 1e18"
BATCH = {"batch_size": 2}


def costs_one(does: str, function: Callable, reason: str, **options: object) -> Fault:
    return Fault(
        does=does, function=function, comes=THE_SAMPLE, gives=ONE, reason=reason, count=1,
        options=options,
    )  # fmt: skip


def costs_a_batch(does: str, function: Callable, reason: str, **options: object) -> Fault:
    return Fault(
        does=does, function=function, comes=THE_BATCH, gives=TWO, reason=reason, count=2,
        options=BATCH | options,
    )  # fmt: skip


def fine(does: str, function: Callable, comes: str, gives: Sequence[float], **how: object) -> Fault:
    return Fault(does=does, function=function, comes=comes, gives=gives, reason=None, **how)


def at(function: Callable) -> str:
    """The location of the failing line of a two-line function."""
    return f" at tests/faults.py:{inspect.getsourcelines(function)[1] + 1}"


DIVISION = f"raised ZeroDivisionError: 'division by zero'{at(divide)}"
FAULTS = [
    costs_one("raises an exception", second(divide), DIVISION),
    costs_one(
        "raises one whose text raises", second(say_nothing),
        f"raised Speechless: its text raises RuntimeError{at(say_nothing)}",
    ),
    costs_one(
        "raises KeyboardInterrupt", second(interrupt),
        f"raised KeyboardInterrupt: ''{at(interrupt)}",
    ),
    costs_one("hangs, with `timeout=0.2`", second(never), "timed out", timeout=0.2),
    costs_one("calls `exit(0)`", second(leave), f"raised SystemExit: '0'{at(leave)}"),
    costs_one(
        "calls `os._exit(0)`", second(leave_at_once), f"raised SystemExit: '0'{at(leave_at_once)}"
    ),
    costs_one("gives a text, `'1.0'`", giving("1.0"), "gave str, not a number"),
    costs_one("gives NaN", giving(math.nan), NOT_FINITE),
    costs_one("gives NaN of a class of its own", giving(Small("nan")), NOT_FINITE),
    costs_one("gives infinity", giving(math.inf), NOT_FINITE),
    costs_one("gives minus infinity", giving(-math.inf), NOT_FINITE),
    costs_one("gives `1e30`", giving(1e30), NOT_FINITE),
    costs_one("gives a tensor of two", giving(torch.ones(2)), "gave Tensor, not a number"),
    costs_one("gives a list, `[1.0]`", giving([1.0]), "gave list, not a number"),
    Fault(
        does="gives a number outside its `range=[0,3]`",
        function=giving(3.5),
        comes=THE_SAMPLE,
        gives=[9.0, None, 10 + 1 / 3, 11.0],
        reason="gave a number outside 0 to 3, which is reward.odd.range",
        count=1,
        options={"range": (0.0, 3.0)},
    ),
    Fault(
        does="gives None",
        function=giving(None),
        comes="no opinion: the sample is left to the other rewards",
        gives=[10.0, 10.0, 12.0, 13.0],
        reason="gave none",
        count=1,
    ),
    fine("gives a negative number", giving(-1.0), "an ordinary score", [10.0, 9.0, *ALL[2:]]),
    fine("gives True", giving(True), "True is 1, False is 0", ALL),
    fine("gives a tensor of one", giving(torch.tensor([1.0])), "its value is the score", ALL),
    fine("modifies its arguments", scribbles, "no other reward sees the change", ALL),
    costs_a_batch("`@batched`: raises", of_two(lambda given: divide()), DIVISION),
    costs_a_batch(
        "`@batched`: hangs, with `timeout=0.2`", of_two(lambda given: never()), "timed out",
        timeout=0.2,
    ),
    costs_a_batch(
        "`@batched`: gives too few numbers", of_two(lambda given: given[:1]),
        "raised ValueError: 'gave 1 numbers for 2 samples'",
    ),
    costs_a_batch(
        "`@batched`: gives a million numbers", of_two(lambda given: given * 500_000),
        "raised ValueError: 'gave 1000000 numbers for 2 samples'",
    ),
    costs_a_batch(
        "`@batched`: gives one number", of_two(lambda given: 1.0),
        "raised TypeError: 'gave float, not a list'",
    ),
    costs_a_batch(
        "`@batched`: gives an endless generator", of_two(lambda given: iter(int, 1)),
        "raised TypeError: 'gave callable_iterator, not a list'",
    ),
    costs_one(
        "`@batched`: gives one NaN", of_two(lambda given: [0.0, math.nan]), NOT_FINITE, **BATCH
    ),
    fine(
        "`@batched`: gives a list in the wrong order", of_two(lambda given: given[::-1]),
        "undetectable: return a mapping from index to number instead",
        [11.0, 10.0, 12.0, 13.0], options=BATCH,
    ),
    fine(
        "`@batched`: gives a mapping in any order", of_two(lambda given: {1: 1.0, 0: 0.0}),
        "every number reaches its sample", ALL, options=BATCH,
    ),
    costs_one(
        "`@batched`: gives a mapping with a missing index", of_two(lambda given: {0: 0.0}),
        "gave no number for it", **BATCH,
    ),
    costs_a_batch(
        "`@batched`: gives a mapping with an invalid index", of_two(lambda given: {7: 0.0}),
        "gave a number for 7, of 2 samples",
    ),
    Fault(
        does="`@groupwise`: gives too few numbers",
        function=groupwise(in_groups),
        comes="its group has no score",
        gives=TWO,
        reason="raised ValueError: 'gave 1 numbers for 2 samples'",
        count=2,
    ),
    Fault(
        does="`@pairwise`: raises",
        function=pairwise(in_pairs),
        comes="both samples have no score",
        gives=[None, None, 10.25, 10.75],
        reason=DIVISION,
        count=2,
    ),
]  # fmt: skip


def table() -> str:
    head = ["| a reward that | result | counted as |", "|---|---|---|"]
    reasons = [re.sub(r" at \S+:\d+", " at my_rewards.py:12", one.reason or "") for one in FAULTS]
    rows = [
        f"| {one.does} | {one.comes} | {f'`{reason}`' if reason else ''} |"
        for one, reason in zip(FAULTS, reasons, strict=True)
    ]
    return "\n".join([*head, *rows, ""])


def page() -> str:
    """docs/rewards.md with this table between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
