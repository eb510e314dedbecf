"""Runs in separate processes, whose reward never returns from its n-th call."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import re
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from toy_run import run, share_of_threes

FORK = multiprocessing.get_context("fork")


def in_python(hanging: Path) -> None:
    hanging.touch()
    threading.Event().wait()


def in_c(hanging: Path) -> None:
    """Lock a mutex twice: no signal ends that, and Python's lock is free meanwhile."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    hanging.touch()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def in_c_with_the_lock(hanging: Path) -> None:
    """Match a backtracking pattern: it takes practically forever, and no Python thread runs."""
    hanging.touch()
    re.match("(a+)+$", "a" * 60 + "b")


def hangs_at(call: int, how: Callable[[Path], None], hanging: Path) -> Callable:
    """A reward of a share, whose n-th call makes the file `hanging` and does not return."""
    calls = iter(range(10**6))

    def reward(output, prompt) -> float:
        if next(calls) == call:
            how(hanging)
        return share_of_threes(output, prompt)

    return reward


def start(folder: Path, **how: object) -> BaseProcess:
    """A run in a child process, whose standard error goes to the file `said` beside the folder."""
    child = FORK.Process(target=functools.partial(_run, folder, **how))
    child.start()
    return child


def _run(folder: Path, **how: object) -> None:
    with log_path(folder).open("wb") as said:
        os.dup2(said.fileno(), 2)
    run(folder, **how)


def log_path(folder: Path) -> Path:
    return folder.with_suffix(".said")
