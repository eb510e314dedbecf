"""Exceptions and signals that end a run, their exit codes, and the command that resumes it."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import _exit as end_process  # at once, whatever other threads do; rewards cannot replace it
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import NoReturn

__all__ = [
    "INTERRUPTED",
    "LEFT_TO_RUN",
    "PREVIEWS",
    "STALLED",
    "STOPPED",
    "Abandoned",
    "EngineUnavailable",
    "Stop",
    "UnusableScores",
    "code_of",
    "command_to_resume",
    "defer_signals",
    "end_process",
    "end_when_told",
    "ignore_signals",
    "interpreter",
    "keep_exit_code",
    "list_heard",
    "say_at_once",
    "until_told",
]

STOPPED = 3  # exit code of a run that a guard ended
STALLED = 4  # of a run that stopped making progress
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: not an error, the run can be resumed
PREVIEWS = {"estimate=true", "dry_run=true"}  # words of `train` that start nothing
TOLD = (
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGUSR1,
)  # in addition to Ctrl-C; SIGHUP must be first
USUAL = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(TOLD, signal.SIG_DFL)}
# Signals that a terminal sends to the run that hears them and to its children: a forked child
# leaves the first one to the run.
LEFT_TO_RUN: set[signal.Signals] = set()


class Stop(RuntimeError):
    """The end of a run. The message states what was observed and what to change.

    change: the override with which a resumed run goes on in spite of it; page: the documentation of
    the cause, a path in the repository; together: all ranks raise it at the same point, so they can
    save a checkpoint.
    """

    may_save = True  # whether a checkpoint may be written at the end

    def __init__(
        self, message: str, *, change: str = "", page: str = "", together: bool = False
    ) -> None:
        super().__init__(message)
        self.change, self.page, self.together = change, page, together


class UnusableScores(Stop, ValueError):
    """Scores of samples for which an advantage is not defined."""


class EngineUnavailable(Stop):
    """An engine, reward or environment server that did not answer in time.

    It is raised before an iteration has trained anything, so a checkpoint at that moment is
    complete.
    """


class Abandoned(SystemExit):
    """The end of a run that was told to stop and no longer waits for samples and rewards.

    Like `EngineUnavailable` it is raised before an iteration has trained anything, or when an
    earlier checkpoint exists."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


def list_heard() -> list[signal.Signals]:
    """The signals that end a run or a sweep; under nohup, SIGHUP is ignored."""
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, *TOLD[under_nohup:]]


@contextmanager
def end_when_told(*, resumable: bool = False) -> Iterator[None]:
    """A context in which a signal ends the command at once, with one line and the exit code of
    `code_of`.

    resumable: of a command that continues what it left; the code is INTERRUPTED, and Ctrl-C
    raises, so that what has begun is cleared away. Training runs, sweeps and servers handle signals
    themselves.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        _end(number, INTERRUPTED if resumable else code_of(number))

    # An import may swallow what a handler raises, and go on with half a module.
    heard = {number: own for number, own in USUAL.items() if number in TOLD or not resumable}
    before = {number: own for number, own in heard.items() if signal.getsignal(number) is own}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, leave)
        keep_exit_code()  # of a second Ctrl-C as Python ends, which would end it without one
        print("\nstopped by Ctrl-C", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        for number, own in before.items():
            if signal.getsignal(number) is leave:  # a server has handlers of its own to the end
                signal.signal(number, own)


@contextmanager
def until_told() -> Iterator[None]:
    """A block of a server, which a signal ends. The next signal ends the process at once."""

    def tell(number: int, _: FrameType | None) -> NoReturn:
        for one in heard:
            signal.signal(one, lambda number, _: _end(number, code_of(number)))
        keep_exit_code()
        raise KeyboardInterrupt

    heard = list_heard()
    with suppress(KeyboardInterrupt):
        for number in heard:
            signal.signal(number, tell)
        yield


@contextmanager
def defer_signals() -> Iterator[None]:
    """A block that is carried out whole: a signal that arrives in it counts at its end."""
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in list_heard()
    }
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
        for number in held[:1]:
            signal.raise_signal(number)


def restore_usual() -> None:
    """Replace Tandem's handlers in a forked child, such as a worker of a reward, by the usual ones:
    its signals are its own."""
    if LEFT_TO_RUN:  # the run hears signals by this descriptor, which the child inherited
        signal.set_wakeup_fd(-1)
    for number, usual in USUAL.items():
        own = signal.getsignal(number)
        if isinstance(own, FunctionType | MethodType) and str(own.__module__).startswith("tandem."):
            signal.signal(number, _leave_first if number in LEFT_TO_RUN else usual)


def _leave_first(number: int, _: FrameType | None) -> None:
    signal.signal(number, USUAL[signal.Signals(number)])


os.register_at_fork(after_in_child=restore_usual)


def keep_exit_code() -> None:
    """Let signals change nothing while Python ends, once all is done, and let it end soon."""

    atexit.register(gc.freeze)  # collecting all modules takes four fifths of the time
    atexit.register(ignore_signals)


def ignore_signals() -> None:
    for number in list_heard():
        signal.signal(number, signal.SIG_IGN)


def code_of(number: int) -> int:
    """The exit code of a command that a signal ended, as shells report it."""
    return 128 + number


def _end(number: int, code: int) -> NoReturn:
    # An exception would count as an error of the running reward.
    by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    say_at_once(f"stopped by {by}")
    end_process(code)


def say_at_once(text: str) -> None:
    """Write lines to stderr, also from the handler of a signal that came during a `print`."""
    with suppress(OSError):  # it may have no reader
        os.write(2, f"\n{text}\n".encode())


def command_to_resume(run_dir: Path) -> str:
    """The command that resumes a run, for the shell that started this process."""
    return f"{interpreter()} -m tandem train resume={shlex.quote(str(run_dir))}"


def interpreter() -> str:
    """This Python interpreter as a shell command: `python` if that is what the shell finds."""
    found = shutil.which("python")
    if found is not None and Path(found).absolute() == Path(sys.executable):
        return "python"
    spellings = [sys.executable]
    with suppress(FileNotFoundError):  # of a working directory that a reward deleted
        spellings.append(os.path.relpath(sys.executable))
    return shlex.quote(min(spellings, key=len))
