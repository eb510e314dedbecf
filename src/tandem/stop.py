"""Reasons that end a run, each with one line and an exit code, and the command that goes on."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import _exit as end_process  # at once, whatever other threads do; rewards cannot have it
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
STALLED = 4  # of one that made no progress any more
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command may go on
TOLD = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)  # beside Ctrl-C; SIGHUP first


class Stop(RuntimeError):
    """A run ends; the message says what was seen and what to change."""


class EngineUnavailable(Stop):
    """Somebody whom the run asks gave no answer, however long it waited.

    It is raised before anything of an iteration was trained, so a checkpoint of that moment loses
    nothing.
    """


class Abandoned(SystemExit):
    """A run that was told to end waits for samples and rewards no longer. As `EngineUnavailable`,
    it comes before anything of an iteration was trained, or a checkpoint of before is there."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


def list_heard() -> list[signal.Signals]:
    """The signals that a run and a sweep end on: all of these, but under nohup no SIGHUP."""
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, *TOLD[under_nohup:]]


@contextmanager
def end_when_told() -> Iterator[None]:
    """Ctrl-C ends a command in one line, and so do the signals by which a machine is taken back, at
    once: with the code of what was asked to stop. A run that trains, and a sweep, hear them in ways
    of their own."""

    def leave(number: int, _: FrameType | None) -> None:
        os.write(2, f"\nstopped by {signal.Signals(number).name}\n".encode())
        end_process(INTERRUPTED)  # an exception would be a fault of the reward that it came in

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
    """The command that goes on with a run, as the shell that started this process would take it."""
    return f"{interpreter()} -m tandem train resume={shlex.quote(str(run_dir))}"


def interpreter() -> str:
    """This Python, as it is called from here: by name where the shell finds this very one."""
    found = shutil.which("python")
    if found is not None and Path(found).absolute() == Path(sys.executable):
        return "python"
    return shlex.quote(min(os.path.relpath(sys.executable), sys.executable, key=len))
