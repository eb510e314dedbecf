"""Processes that start quickly: forked from one that has imported their libraries.

Importing torch and Lightning takes six seconds, longer than most of these processes live. The
process they are forked from does nothing else, so no state of a test gets into them, and no thread
of it holds a lock that would stay locked in them for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import torch

ROOT = Path(__file__).parents[1]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["tandem.launch.run", "tandem.policies.language.policy", "matplotlib.figure"]
)


def start(target: Callable, *args: object, output: Path) -> BaseProcess:
    """A call in a process of its own, with its output in the file `output`."""
    process = FORKED.Process(target=_write_to, args=(output, target, *args))
    process.start()
    return process


def _write_to(output: Path, target: Callable, *args: object) -> None:
    with output.open("ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    torch.set_num_threads(1)  # as tests have: more threads round otherwise
    target(*args)


def start_training(*overrides: str, output: Path) -> BaseProcess:
    """`python train.py OVERRIDES`."""
    return start(_train, overrides, output=output)


def _train(overrides: tuple[str, ...]) -> None:
    os.chdir(ROOT)
    sys.argv = ["train.py", *overrides]
    runpy.run_path("train.py", run_name="__main__")


def spend(process: BaseProcess) -> Iterator[float]:
    """The CPU-seconds of a process, again and again until it ends."""
    with suppress(psutil.NoSuchProcess):
        watched = psutil.Process(process.pid)
        while process.is_alive():
            times = watched.cpu_times()
            yield times.user + times.system
            time.sleep(0.005)


def end_of_child(*numbers: signal.Signals) -> int | None:
    """The exit code of a child that this process forks, and that gets these signals."""
    child = multiprocessing.get_context("fork").Process(
        target=lambda: [signal.raise_signal(number) for number in numbers]
    )
    child.start()
    child.join(10)
    return child.exitcode
