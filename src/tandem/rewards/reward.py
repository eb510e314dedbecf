"""One component of the reward: a function, its weight, and what its calls may cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from tandem.rewards.attempts import attempt
from tandem.rewards.call import (
    at_once_of,
    form_of,
    is_batched,
    is_waiting,
    rows_of_groups,
)
from tandem.rewards.concurrency import at_once
from tandem.rewards.result import LARGEST, Verdict, number_of, one_each, scaled
from tandem.types import Prompt


class Reward:
    """A function of samples that is asked with care: whatever it does costs its own numbers only.

    The function is `(output, prompt) -> float | None`, or as its declarations say (`@batched`,
    `@groupwise`, `@pairwise`, `@waits`); `batch_size` is the most questions of one batched call. A
    call that takes over `timeout` seconds is given up: its rows are missing. It goes on in a thread
    of its own, which cannot be ended, so a function that hangs often should end itself (as
    `MathVerify` does); None asks in the thread that trains, and waits for ever. `range` is what the
    function can give, lowest and highest: it becomes -1 to 1, and a number outside is missing.
    """

    def __init__(
        self,
        function: Callable,
        *,
        weight: float = 1.0,
        range: tuple[float, float] | None = None,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout} of a reward must be positive, or null")
        if not math.isfinite(weight):
            raise ValueError(f"the weight of a reward must be finite, not {weight}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} of a reward must be at least 1, or null")
        if range is not None and not -LARGEST <= range[0] < range[1] <= LARGEST:
            raise ValueError(f"range={list(range)} of a reward must rise, within 1e18 of 0")
        self.function, self.form = function, form_of(function)
        self.batched, self.waits = is_batched(function), is_waiting(function)
        self.at_once = at_once_of(function)
        self.range = range
        self.weight = weight
        self.batch_size = batch_size
        self.timeout = timeout

    def __call__(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> tuple[list[float | None], Counter[str]]:
        """The number of each sample, None where it is missing, and how often for which reason."""
        judged = self.judge(outputs, prompts, group)
        faults = Counter(reason for _, reason in judged if reason is not None)
        return [number for number, _ in judged], faults

    def judge(
        self, outputs: Sequence[str], prompts: Sequence[Prompt], group: Tensor | None = None
    ) -> list[Verdict]:
        """The number of each sample, or the reason why there is none; `ABSTAINED` is no failure.

        group: [B], the same number for the samples of a group; None: each stands alone.
        """
        questions = self.form.questions(rows_of_groups(group, len(outputs)))
        asked = [self.form.arguments(outputs, prompts, rows) for rows in questions]
        answers = self._in_batches(asked) if self.batched else self._ask(asked)
        values = self.form.verdicts(questions, answers, len(outputs))
        return [scaled(*number_of(value), self.range) for value in values]

    def _in_batches(self, asked: Sequence[tuple]) -> list[object]:
        size = self.batch_size or max(len(asked), 1)
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        calls = [tuple(list(column) for column in zip(*part, strict=True)) for part in parts]
        answers = zip(self._ask(calls), parts, strict=True)
        return [one for answer, part in answers for one in one_each(answer, len(part))]

    def _ask(self, calls: Sequence[tuple]) -> list[object]:
        """What the function gave for each, or what it raised."""
        if self.timeout is None and self.at_once == 1:
            return [attempt(self.function, arguments) for arguments in calls]
        return at_once(self.at_once, self.function, calls, seconds=self.timeout)
