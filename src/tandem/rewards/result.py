"""Results of reward functions: a number, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from tandem.rewards.attempts import told

TIMED_OUT = "timed out"
ABSTAINED = "gave none"  # the function has no opinion of a sample: others may
OUTSIDE = "gave a number outside"
HERE = "reward.*."  # before a key in a reason: a function does not know the name of its reward
NOT_HERE = "only works in main thread"  # as Python says of signals, such as those of a time limit
THERE = f"{HERE}timeout=null asks it in the main thread, without a time limit of Tandem's"
LARGEST = 1e18  # its square is a float32 still, so group statistics stay finite

Verdict = tuple[float | None, str | None]  # a number and no reason, or none and the reason


class Missing(Exception):
    """Why there is no number of a sample, in words that are shown as they are."""


def one_each(values: object, count: int) -> list[object]:
    """An answer about several as one value for each; a fault is the fault of every one.

    A mapping goes from place to value; one that names no place leaves it without.
    """
    try:
        return _one_each(values, count)
    except Exception as error:  # a list of the user's own may do anything
        return [error] * count


def _one_each(values: object, count: int) -> list[object]:
    if isinstance(values, BaseException):
        return [values] * count
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if isinstance(values, Mapping):
        return _by_place(values, count)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return [TypeError(f"gave {type(values).__name__}, not a list")] * count
    if len(values) != count:
        return [ValueError(f"gave {len(values)} numbers for {count} samples")] * count
    return list(values)


def _by_place(values: Mapping, count: int) -> list[object]:
    foreign = [place for place in values if place not in range(count)]
    if foreign:
        return [Missing(f"gave a number for {str(foreign[0])[:20]}, of {count} samples")] * count
    left_out = Missing("gave no number for it")
    return [values.get(place, left_out) for place in range(count)]


def number_of(value: object) -> Verdict:
    """A finite float and no reason, or None and the reason why not."""
    plain = value
    try:
        if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
            plain = value.item()
        # As Python's own: a class of the user's may call NaN small.
        if isinstance(plain, float):
            plain = float.__float__(plain)
        elif isinstance(plain, int):
            plain = int.__int__(plain)
    except Exception as error:
        return None, f"gave {type(value).__name__}, which raised {told(error)}"
    reason = _reason(plain)
    return (float(plain), None) if reason is None else (None, reason)


def _reason(value: object) -> str | None:
    if value is None:
        return ABSTAINED
    if isinstance(value, Missing):
        return str(value)
    if isinstance(value, TimeoutError):
        return TIMED_OUT
    if isinstance(value, BaseException):
        reason = f"raised {told(value)}"
        return f"{reason}; {THERE}" if NOT_HERE in reason else reason
    if not isinstance(value, int | float):
        return f"gave {type(value).__name__}, not a number"
    if not abs(value) <= LARGEST:
        return "gave a number that is not finite or over 1e18"
    return None


def scaled(number: float | None, reason: str | None, bounds: tuple[float, float] | None) -> Verdict:
    """-1 at the low bound, 1 at the high one; missing outside. No bounds leave it as it is."""
    if number is None or bounds is None:
        return number, reason
    low, high = bounds
    if not low <= number <= high:
        return None, f"{OUTSIDE} {low:g} to {high:g}"
    return 2 * (number - low) / (high - low) - 1, None


def fault_of(name: str, reason: str) -> str:
    """A reason with the reward it comes from, and the key that may be wrong."""
    return f"{name}: {explained(name, reason)}"


def explained(name: str, reason: str) -> str:
    """A reason that names the keys of this reward."""
    key = f", which is {HERE}range" if reason.startswith(OUTSIDE) else ""
    return f"{reason}{key}".replace(HERE, f"reward.{name}.")


def failures(faults: Mapping[str, int]) -> dict[str, int]:
    """Of reasons why numbers are missing those that are somebody's failure."""
    return {
        reason: count for reason, count in faults.items() if not reason.endswith(f": {ABSTAINED}")
    }
