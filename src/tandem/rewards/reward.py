"""What a user's function says of a sample becomes a score, or is missing with a reason."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from tandem.declarations import unbound
from tandem.types import Prompt, Scores

ABSTAINED = "gave none"  # the function has no opinion of a sample: others may
OUTSIDE = "gave a number outside"
LARGEST = 1e18  # its square is a float32 still, so group statistics stay finite


def batched(function: Callable) -> Callable:
    """Mark a reward that takes lists: (outputs, prompts) -> a number or None for each."""
    function.batched = True
    return function


class Reward:
    """One component of the reward: a function, its weight, and what its calls may cost.

    The function is `(output, prompt) -> float | None`, or `@batched`; `batch_size` is the most rows
    of one batched call. A call that takes over `timeout` seconds is given up: its rows are missing.
    It goes on in a thread of its own, which cannot be ended, so a function that hangs often should
    end itself (as `MathVerify` does). `range` is what the function can give, lowest and highest: it
    becomes -1 to 1, and a number outside is missing.
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
        if not math.isfinite(weight):
            raise ValueError(f"the weight of a reward must be finite, not {weight}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} of a reward must be at least 1, or null")
        if range is not None and not -LARGEST <= range[0] < range[1] <= LARGEST:
            raise ValueError(f"range={list(range)} of a reward must rise, within 1e18 of 0")
        self.function = function
        self.range = range
        self.weight = weight
        self.batch_size = batch_size
        self.timeout = timeout
        self.batched = getattr(unbound(function)[0], "batched", False)

    def __call__(
        self, outputs: Sequence[str], prompts: Sequence[Prompt]
    ) -> tuple[list[float | None], Counter[str]]:
        """The number of each sample, None where it is missing, and how often for which reason."""
        judged = self.judge(outputs, prompts)
        faults = Counter(reason for _, reason in judged if reason is not None)
        return [number for number, _ in judged], faults

    def judge(
        self, outputs: Sequence[str], prompts: Sequence[Prompt]
    ) -> list[tuple[float | None, str | None]]:
        """The number of each sample, or the reason why there is none; `ABSTAINED` is no failure."""
        values = self._batches(outputs, prompts) if self.batched else self._rows(outputs, prompts)
        return [_scaled(*_judged(value), self.range) for value in values]

    def _rows(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> Iterable[object]:
        for output, prompt in zip(outputs, prompts, strict=True):
            yield self._attempt(output, prompt)

    def _batches(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> Iterable[object]:
        size = self.batch_size or max(len(outputs), 1)
        for start in range(0, len(outputs), size):
            part = list(outputs[start : start + size])
            values = self._attempt(part, list(prompts[start : start + size]))
            yield from _one_each(values, len(part))

    def _attempt(self, *arguments: object) -> object:
        """What the function gave, or the exception it raised."""
        try:
            if self.timeout is None:
                return self.function(*arguments)
            return within(self.timeout, self.function, *arguments)
        except (Exception, SystemExit) as error:  # exit() in a reward must not end the run
            return error


class Rewards:
    """The weighted sum of named rewards.

    A reward that gives None leaves a sample to the others; one that fails leaves it without a
    score, because a sum without its term would be another reward. None from all is no score either.
    A reward that a prompt does not name among its own is not asked, which is no fault of anybody.
    """

    def __init__(self, components: Mapping[str, Reward]) -> None:
        if not components:
            raise ValueError("no reward: choose one, for example reward=exact_match")
        self.components = dict(components)
        self.faults: Counter[str] = Counter()  # reason -> missing numbers since last popped

    @property
    def primary(self) -> str:
        """The first reward: what accuracy means and DAPO filters by, unless told otherwise."""
        return next(iter(self.components))

    def __call__(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> Scores:
        parts, total = {}, torch.zeros(len(outputs), dtype=torch.float64)
        scored, failed = (torch.zeros(len(outputs), dtype=torch.bool) for _ in range(2))
        for name, component in self.components.items():
            judged = _judged_by(name, component, outputs, prompts)
            reasons = [reason for _, reason in judged]
            self.faults.update(_fault(name, reason) for reason in reasons if reason is not None)
            numbers = [math.nan if number is None else number for number, _ in judged]
            parts[name] = torch.tensor(numbers, dtype=torch.float32)
            total += component.weight * parts[name].double().nan_to_num(0.0)
            scored |= ~parts[name].isnan()
            failed |= torch.tensor([r not in (None, ABSTAINED) for r in reasons], dtype=torch.bool)
        scored &= ~failed
        return Scores(total=torch.where(scored, total, 0).float(), parts=parts, scored=scored)

    def pop_faults(self) -> dict[str, int]:
        """How many numbers were missing for which reason since the last call."""
        faults, self.faults = dict(self.faults), Counter()
        return faults


def _judged_by(
    name: str, component: Reward, outputs: Sequence[str], prompts: Sequence[Prompt]
) -> list[tuple[float | None, str | None]]:
    """As `Reward.judge`; neither number nor reason where the reward is not asked."""
    asked = [i for i, prompt in enumerate(prompts) if prompt.judged_by(name)]
    answers = component.judge([outputs[i] for i in asked], [prompts[i] for i in asked])
    judged: list[tuple[float | None, str | None]] = [(None, None)] * len(outputs)
    for i, answer in zip(asked, answers, strict=True):
        judged[i] = answer
    return judged


def within(seconds: float, function: Callable, *arguments: object) -> object:
    """The result of a call, or a TimeoutError after so many seconds."""
    future: Future = Future()
    # A daemon: a call that never returns must not keep the process alive.
    threading.Thread(target=_settle, args=(future, function, arguments), daemon=True).start()
    return future.result(seconds)


def _settle(future: Future, function: Callable, arguments: tuple) -> None:
    try:
        future.set_result(function(*arguments))
    except BaseException as error:
        future.set_exception(error)


def _one_each(values: object, count: int) -> list[object]:
    """A batched function's answer as one value per row; a fault is the fault of every row."""
    if isinstance(values, BaseException):
        return [values] * count
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str):
        return [TypeError(f"gave {type(values).__name__}, not a list")] * count
    if len(values) != count:
        return [ValueError(f"gave {len(values)} numbers for {count} samples")] * count
    return list(values)


def _judged(value: object) -> tuple[float | None, str | None]:
    """A finite float and no reason, or None and the reason why not."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    reason = _reason(value)
    return (float(value), None) if reason is None else (None, reason)


def _scaled(
    number: float | None, reason: str | None, bounds: tuple[float, float] | None
) -> tuple[float | None, str | None]:
    """-1 at the low bound, 1 at the high one; missing outside. No bounds leave it as it is."""
    if number is None or bounds is None:
        return number, reason
    low, high = bounds
    if not low <= number <= high:
        return None, f"{OUTSIDE} {low:g} to {high:g}"
    return 2 * (number - low) / (high - low) - 1, None


def _fault(name: str, reason: str) -> str:
    """A reason with the reward it comes from, and the key that may be wrong."""
    key = f", which is reward.{name}.range" if reason.startswith(OUTSIDE) else ""
    return f"{name}: {reason}{key}"


def _reason(value: object) -> str | None:
    if value is None:
        return ABSTAINED
    if isinstance(value, TimeoutError):
        return "timed out"
    if isinstance(value, BaseException):
        return f"raised {type(value).__name__}: {str(value)[:80]!r}"
    if not isinstance(value, int | float):
        return f"gave {type(value).__name__}, not a number"
    if not abs(value) <= LARGEST:
        return "gave a number that is not finite or over 1e18"
    return None
