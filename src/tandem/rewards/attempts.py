"""A call of somebody else's function, which gives an answer or what it raised, and never more."""

from __future__ import annotations

import os
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import NoReturn

from tandem.stop import end_process

OWN = Path(__file__).parents[1]
PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
LIBRARIES = (str(OWN), *(sysconfig.get_path(name) for name in PATHS), "<frozen ")


class Attempting(threading.local):
    """Whether this thread is in such a call, by the process: a child that is forked is not."""

    process: int | None = None


ATTEMPTING = Attempting()


def attempt(function: Callable, arguments: Sequence[object]) -> object:
    """What the function gave, or what it raised: `exit()` in it must not end the run."""
    ctrl_c = CtrlC()
    try:
        with exits_raise(), ctrl_c:
            return function(*arguments)
    except KeyboardInterrupt as error:
        if ctrl_c.pressed:
            raise
        return error
    except BaseException as error:
        return error


class CtrlC:
    """Tells a person's from a KeyboardInterrupt that code raises by itself.

    A run that trains hears the signal in a way of its own, and other threads never do.
    """

    pressed = False

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self.hears = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.hears:
            signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *raised: object) -> None:
        if self.hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _press(self, number: int, frame: FrameType | None) -> NoReturn:
        self.pressed = True
        raise KeyboardInterrupt


@contextmanager
def exits_raise() -> Iterator[None]:
    """`os._exit` in this thread is a SystemExit; it would end the run without a word, and by code 0
    as if it had finished."""
    os._exit = _exit
    before, ATTEMPTING.process = ATTEMPTING.process, os.getpid()
    try:
        yield
    finally:
        ATTEMPTING.process = before


def _exit(status: int) -> None:
    if ATTEMPTING.process == os.getpid():
        raise SystemExit(status)
    end_process(status)


def told(error: BaseException) -> str:
    """What an exception is, what it says, and where in the user's code it came up."""
    text = attempt(lambda: repr(str(error)[:80]), ())  # code of theirs too
    if isinstance(text, BaseException):
        text = f"its text raises {type(text).__name__}"
    return f"{type(error).__name__}: {text}{_place(error)}"


def _place(error: BaseException) -> str:
    """` at FILE:LINE`, the innermost one that is of no library; "" if all are."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [(name, line) for name, line in lines if not name.startswith(LIBRARIES)]
    if not own:
        return ""
    name, line = own[-1]
    here = Path(name)
    shown = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return f" at {shown}:{line}"
