"""Exceptions and signals that end a run, their exit codes, and the command that resumes it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import _exit as end_process  # at once, whatever other threads do; rewards cannot replace it
from pathlib import Path
from types import FrameType

__all__ = [
    "INTERRUPTED",
    "STALLED",
    "STOPPED",
    "Abandoned",
    "EngineUnavailable",
    "Stop",
    "command_to_resume",
    "end_process",
    "end_when_told",
    "interpreter",
    "list_heard",
]

STOPPED = 3  # exit code of a run that a guard ended
STALLED = 4  # of a run that stopped making progress
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: not an error, the run can be resumed
TOLD = (
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGUSR1,
)  # in addition to Ctrl-C; SIGHUP must be first


class Stop(RuntimeError):
    """The end of a run. The message states what was observed and what to change."""


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
def end_when_told() -> Iterator[None]:
    """A context in which Ctrl-C or a termination signal ends the command at once, with one line and
    exit code INTERRUPTED. Training runs and sweeps handle signals themselves."""

    def leave(number: int, _: FrameType | None) -> None:
        os.write(2, f"\nstopped by {signal.Signals(number).name}\n".encode())
        end_process(INTERRUPTED)  # an exception would count as an error of the running reward

    heard = [number for number in TOLD if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def command_to_resume(run_dir: Path) -> str:
    """The command that resumes a run, for the shell that started this process."""
    return f"{interpreter()} -m tandem train resume={shlex.quote(str(run_dir))}"


def interpreter() -> str:
    """This Python interpreter as a shell command: `python` if that is what the shell finds."""
    found = shutil.which("python")
    if found is not None and Path(found).absolute() == Path(sys.executable):
        return "python"
    return shlex.quote(min(os.path.relpath(sys.executable), sys.executable, key=len))
