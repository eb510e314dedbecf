"""Calls in threads that neither keep a process alive nor outlive the wait for them."""

import threading
import time

import pytest
import torch

from tandem.progress import PROGRESS
from tandem.stop import Abandoned
from tandem.threads import ENDING, call_in_thread, map_in_threads, result_of

LIMIT = 20.0  # seconds until a test that hangs fails


def test_results_stand_in_the_order_of_their_arguments_and_few_calls_run_together():
    running, most, lock = [], [], threading.Lock()

    def square(number):
        with lock:
            running.append(number)
            most.append(len(running))
        time.sleep(0.001 * (9 - number))
        with lock:
            running.remove(number)
        return number**2

    assert map_in_threads(3, square, range(9)) == [number**2 for number in range(9)]
    assert max(most) == 3
    assert map_in_threads(3, square, []) == []


def test_every_call_that_returns_is_progress(monkeypatch):
    """A row that a server sends is one: a rollout may take longer than a run may stand still."""
    monkeypatch.setattr(PROGRESS, "at", 0.0)
    seen = []

    def serve(number):
        seen.append(PROGRESS.at)
        time.sleep(0.001)

    map_in_threads(1, serve, range(3))
    assert seen[0] == 0.0 < seen[1] < seen[2] < PROGRESS.at


def test_an_error_is_raised_when_the_calls_beside_it_have_ended_and_none_follows():
    begun, ended, both = [], [], threading.Barrier(2)

    def call(number):
        begun.append(number)
        both.wait(LIMIT)
        if number == 0:
            raise IndexError("the first")
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(IndexError, match="the first"):
        map_in_threads(2, call, range(9))
    assert sorted(begun) == [0, 1] and ended == [1]


def test_a_run_that_ends_waits_for_no_call_and_begins_none(monkeypatch):
    begun, let_go, before = [], threading.Event(), set(threading.enumerate())

    def hang(number):
        begun.append(number)
        assert let_go.wait(LIMIT)
        return number

    monkeypatch.setattr(ENDING, "since", -float("inf"))  # the grace period is over
    alone = call_in_thread(hang, 7)
    for wait in (lambda: result_of(alone), lambda: map_in_threads(1, hang, range(3))):
        with pytest.raises(Abandoned):
            wait()
    let_go.set()
    assert alone.result(LIMIT) == 7
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
    assert {1, 2}.isdisjoint(begun)


def test_a_call_has_the_gradient_mode_of_its_caller():
    with torch.no_grad():
        assert map_in_threads(2, lambda _: torch.is_grad_enabled(), range(2)) == [False, False]
    assert result_of(call_in_thread(torch.is_grad_enabled))
