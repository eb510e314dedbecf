"""Calls in daemon threads, so that one that hangs cannot keep the process alive, and waits that end
with the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

import torch

from tandem.progress import PROGRESS
from tandem.stop import Abandoned

HEARING = 0.25  # seconds of one wait: a signal is handled only when a wait ends
GRACE = 5.0  # seconds for calls to return after the run was told to end


class Ending:
    """Whether the run is ending, and since when."""

    def __init__(self) -> None:
        self.since: float | None = None

    def begin(self) -> None:
        """Begin, unless it has."""
        self.since = time.monotonic() if self.since is None else self.since

    def clear(self) -> None:
        self.since = None

    def refuse_to_wait(self) -> None:
        """Raise Abandoned once the grace period is over."""
        if self.since is not None and time.monotonic() - self.since >= GRACE:
            raise Abandoned


ENDING = Ending()


def thread_like_this(work: Callable, *arguments: object) -> None:
    """Start a daemon thread with this thread's gradient mode and device."""
    gradients = torch.is_grad_enabled()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def as_here() -> None:
        torch.set_grad_enabled(gradients)
        if device is not None:
            torch.cuda.set_device(device)
        work(*arguments)

    threading.Thread(target=as_here, daemon=True).start()


def call_in_thread(function: Callable, *arguments: object) -> Future:
    """Call a function in a daemon thread; the future holds its result."""
    future: Future = Future()
    thread_like_this(_settle, future, function, arguments)
    return future


def _settle(future: Future, function: Callable, arguments: tuple) -> None:
    try:
        future.set_result(function(*arguments))
    except BaseException as error:
        future.set_exception(error)


def wait_until_done(future: Future) -> None:
    """Wait for the end of a call. Raises Abandoned where the run ends before."""
    while not future.done():
        ENDING.refuse_to_wait()
        wait([future], HEARING)


def result_of(future: Future) -> object:
    """The result of a call, or its exception. Raises Abandoned where the run ends before."""
    wait_until_done(future)
    return future.result()


def map_in_threads(count: int, function: Callable, asked: Sequence) -> list:
    """The function's result for each argument, `count` calls at a time.

    Each result is progress. Once a call raises, no further one begins, and its exception is raised
    when the running ones have ended. Raises Abandoned where the run ends before.
    """
    left, lock = enumerate(asked), threading.Lock()
    results: dict[int, object] = {}

    def take() -> tuple[int, object] | None:
        with lock:
            return next(left, None)

    def begin_no_more() -> None:
        nonlocal left
        left = iter(())

    def work() -> None:
        while (call := take()) is not None:
            place, one = call
            try:
                results[place] = function(one)
                PROGRESS.report()
            except BaseException:
                begin_no_more()
                raise

    workers = [call_in_thread(work) for _ in range(min(count, len(asked)))]
    try:
        for worker in workers:
            wait_until_done(worker)
    finally:
        begin_no_more()
    for worker in workers:
        worker.result()
    return [results[place] for place in range(len(asked))]
