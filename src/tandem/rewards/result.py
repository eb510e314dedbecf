"""Results of a user's function: a number, or the reason why there is none.

A call never raises: it returns the answer of the function, or the exception that it raised.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import os
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import NoReturn

import numpy as np
from torch import Tensor

from tandem.stop import Stop, end_process
from tandem.types import Prompt

TIMED_OUT = "timed out"
ABSTAINED = "gave none"  # the function does not score this sample; others may
OUTSIDE = "gave a number outside"
HERE = "reward.*."  # prefix of a key in a reason: a function does not know its reward's name
NOT_HERE = "only works in main thread"  # as Python says of signals, such as those of a time limit
THERE = f"{HERE}timeout=null calls it in the main thread, without a time limit"
LARGEST = 1e18  # its square is a float32 still, so group statistics stay finite
OWN = Path(__file__).parents[1]
PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
NOWHERE = ("<frozen ", "<string>")  # the latter: methods that a dataclass writes for itself
LIBRARIES = (str(OWN), *(sysconfig.get_path(name) for name in PATHS), *NOWHERE)
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, those of another prefix too

Verdict = tuple[float | None, str | None]  # a number and no reason, or none and the reason


class Missing(Exception):
    """The reason why a sample has no number, shown to the user verbatim."""


class Late(Missing):
    """A call that exceeded its own time limit; callers of many count it as late."""


class Attempting(threading.local):
    """The process whose call this thread is in; a forked child has another one."""

    process: int | None = None


ATTEMPTING = Attempting()


def attempt(function: Callable, arguments: Sequence[object]) -> object:
    """The function's result, or its exception: `exit()` must not end the run. A function that is
    `async def` is awaited.

    A forked child that returns from the call ends here: it would be a second trainer.
    """
    pressed: list[int] = []
    process = os.getpid()
    try:
        with exits_trapped(pressed):
            answer = function(*arguments)
            return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    except KeyboardInterrupt as error:
        if pressed:
            raise
        return error
    except BaseException as error:
        return error
    finally:
        if os.getpid() != process:
            end_process(0)


def copy_of(given: str | Tensor | Prompt) -> str | Tensor | Prompt:
    """A copy of an argument, since a function may modify it and others receive it too.

    A picture is uint8 [H, W, 3]. Raises Stop for a prompt that holds what cannot be copied.
    """
    if isinstance(given, Tensor):
        return given.clone()
    if not isinstance(given, Prompt):
        return given
    written = ("fields", "episode", "messages")
    try:
        return replace(given, **{name: copy.deepcopy(getattr(given, name)) for name in written})
    except Exception as error:  # a value of the user's own may do anything
        what = f"prompt {given.id} of {given.source} holds in its fields what cannot be copied"
        raise Stop(f"{what} for a reward ({told(error)}); keep what JSON can say") from error


@contextmanager
def exits_trapped(pressed: list[int]) -> Iterator[None]:
    """A block in which `os._exit` of this thread is a SystemExit: it would end the run without a
    word, and by code 0 as if it had finished.

    And in which a person's Ctrl-C is told from a KeyboardInterrupt that code raises by itself: its
    number is put into `pressed`. A run that trains hears the signal in a way of its own, and other
    threads never do.
    """

    def press(number: int, frame: FrameType | None) -> NoReturn:
        pressed.append(number)
        raise KeyboardInterrupt

    os._exit = _exit
    before, ATTEMPTING.process = ATTEMPTING.process, os.getpid()
    is_main = threading.current_thread() is threading.main_thread()
    hears = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        ATTEMPTING.process = before
        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(status: int) -> None:
    if ATTEMPTING.process == os.getpid():
        raise SystemExit(status)
    end_process(status)


def one_each(values: object, count: int) -> list[object]:
    """The answer to a batch as one value for each sample; a fault applies to all of them.

    A mapping goes from place to value; one that names no place leaves it without.
    """
    if isinstance(values, BaseException):
        return [values] * count
    try:
        if isinstance(values, Tensor | np.ndarray):
            values = values.tolist()
        if isinstance(values, Mapping):
            return _by_place(values, count)
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            return [TypeError(f"gave {type(values).__name__}, not a list")] * count
        if len(values) != count:
            return [ValueError(f"gave {len(values)} numbers for {count} samples")] * count
        return list(values)
    except Exception as error:  # a list of the user's own may do anything
        return [error] * count


def _by_place(values: Mapping, count: int) -> list[object]:
    foreign = [place for place in values if place not in range(count)]
    if foreign:
        return [Missing(f"gave a number for {str(foreign[0])[:20]}, of {count} samples")] * count
    left_out = Missing("gave no number for it")
    return [values.get(place, left_out) for place in range(count)]


def number_of(value: object, bounds: tuple[float, float] | None = None) -> Verdict:
    """A finite float and no reason, or None and the reason why not.

    With bounds it is -1 at the low one and 1 at the high one, and missing outside.
    """
    plain = value
    try:
        has_one = isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1
        if has_one or isinstance(value, np.generic):
            plain = value.item()
        # As Python's own: a class of the user's may call NaN small.
        if isinstance(plain, float):
            plain = float.__float__(plain)
        elif isinstance(plain, int):
            plain = int.__int__(plain)
    except Exception as error:
        return None, f"gave {type(value).__name__}, which raised {told(error)}"
    if (reason := _reason(plain)) is not None:
        return None, reason
    number = float(plain)
    if bounds is None:
        return number, None
    low, high = bounds
    if not low <= number <= high:
        return None, f"{OUTSIDE} {low:g} to {high:g}"
    return 2 * (number - low) / (high - low) - 1, None


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


def fault_of(name: str, reason: str) -> str:
    """A reason with the reward it comes from, and the key that may be wrong."""
    return f"{name}: {explained(name, reason)}"


def explained(name: str, reason: str) -> str:
    """A reason that names the keys of this reward."""
    key = f", which is {HERE}range" if reason.startswith(OUTSIDE) else ""
    return f"{reason}{key}".replace(HERE, f"reward.{name}.")


def failures(faults: Mapping[str, int]) -> dict[str, int]:
    """The reasons for missing numbers that are failures."""
    return {
        reason: count for reason, count in faults.items() if not reason.endswith(f": {ABSTAINED}")
    }


def told(error: BaseException) -> str:
    """The type and text of an exception, and where in the user's code it was raised."""
    text = attempt(lambda: repr(str(error)[:80]), ())  # code of theirs too
    if isinstance(text, BaseException):
        text = f"its text raises {type(text).__name__}"
    return f"{type(error).__name__}: {text}{place_of(error)}"


def _is_library(file: str) -> bool:
    return file.startswith(LIBRARIES) or not INSTALLED.isdisjoint(Path(file).parts)


def place_of(error: BaseException) -> str:
    """` at FILE:LINE`, the innermost one that is of no library; "" if all are."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [(name, line) for name, line in lines if not _is_library(name)]
    if not own:
        return ""
    name, line = own[-1]
    here = Path(name)
    shown = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return f" at {shown}:{line}"
