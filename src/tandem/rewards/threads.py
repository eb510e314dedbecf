"""Calls beside the main thread. All are daemons: one that hangs must not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future


def within(seconds: float, function: Callable, *arguments: object) -> object:
    """The result of a call, or a TimeoutError after so many seconds."""
    return _started(None, function, *arguments).result(seconds)


def at_once(count: int, function: Callable, items: Sequence) -> list:
    """What a function gives for each item, or the exception it raises; `count` calls at a time."""
    answers: list = [None] * len(items)
    left, lock = iter(enumerate(items)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                place, item = next(left, (None, None))
            if place is None:
                return
            try:
                answers[place] = function(item)
            except Exception as error:
                answers[place] = error

    for worker in [_started(None, work) for _ in range(min(count, len(items)))]:
        worker.result()
    return answers


class Line:
    """Calls that are made one after another, in the order in which they were put."""

    def __init__(self) -> None:
        self.last: Future | None = None

    def put(self, function: Callable, *arguments: object) -> Future:
        self.last = _started(self.last, function, *arguments)
        return self.last


def _started(before: Future | None, function: Callable, *arguments: object) -> Future:
    """A call that has begun, or begins when another one has ended in whatever way."""
    future: Future = Future()
    call = (before, future, function, arguments)
    threading.Thread(target=_settle, args=call, daemon=True).start()
    return future


def _settle(before: Future | None, future: Future, function: Callable, arguments: tuple) -> None:
    try:
        if before is not None:
            before.exception()
        future.set_result(function(*arguments))
    except BaseException as error:
        future.set_exception(error)
