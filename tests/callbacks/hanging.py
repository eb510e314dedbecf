"""Runs in separate processes, whose reward never returns from its n-th call."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType

import processes
import pytest
from toy_run import run, share_of_threes

HOUR = 3600.0  # seconds


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


@dataclass(frozen=True)
class HourAhead:
    """A clock that jumps by an hour when the file `hanging` appears."""

    hanging: Path

    def monotonic(self) -> float:
        return time.monotonic() + HOUR * self.hanging.exists()


def start(
    folder: Path, call: int, how: Callable[[Path], None], *,
    changed: Mapping[str, object] = MappingProxyType({}), **settings: object,
) -> BaseProcess:  # fmt: skip
    """A run in a process of its own whose reward hangs as `hangs_at` says.

    `changed` has new values for names of the package, as `tandem.threads.GRACE`. The
    output goes to `log_path`, and the file `hanging` lies beside the folder.
    """
    return processes.start(
        _run, folder, call, how, dict(changed), settings, output=log_path(folder)
    )


def _run(folder: Path, call: int, how: Callable, changed: dict, settings: dict) -> None:
    for name, value in changed.items():
        pytest.MonkeyPatch().setattr(name, value)
    run(folder, reward=hangs_at(call, how, hanging_path(folder)), **settings)


def hanging_path(folder: Path) -> Path:
    """A file that exists once the reward hangs."""
    return folder.with_suffix(".hanging")


def log_path(folder: Path) -> Path:
    return folder.with_suffix(".said")
