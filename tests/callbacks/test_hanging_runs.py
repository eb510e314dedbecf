"""Hanging runs end: at once by a second signal, and by the watchdog otherwise."""

import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from hanging import (
    HOUR,
    HourAhead,
    hanging_path,
    in_c,
    in_c_with_the_lock,
    in_python,
    log_path,
    start,
)
from toy_run import expected_table, run

from tandem.record import jsonl
from tandem.record.checkpoint import find_newest_whole
from tandem.settings.guards import Guards
from tandem.stop import STALLED, command_to_resume
from tandem.training.callbacks import INTERRUPTED
from tandem.training.callbacks.interrupt import REPEATED
from tandem.training.callbacks.watchdog import Watchdog
from tandem.training.collect import Clock

FOURTH = 160  # a call of the reward in iteration 3, after the checkpoint of iteration 2
# Seconds for a process that would otherwise hang for ever, on a machine with other work.
SOON = 600.0


@pytest.fixture(autouse=True)
def no_child_is_left():
    """Else the interpreter would wait at its end for one that hangs still."""
    yield
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


@pytest.mark.parametrize("how", [in_python, in_c])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_at_once_with_what_was_published(tmp_path, how, number):
    folder = tmp_path / "run"
    child = start(folder, FOURTH, how)
    wait_for(hanging_path(folder))
    os.kill(child.pid, number)
    time.sleep(REPEATED + 0.3)
    assert child.is_alive()  # one signal requests a checkpoint, which never comes
    os.kill(child.pid, number)
    child.join(SOON)
    assert child.exitcode == INTERRUPTED
    said = log_path(folder).read_text()
    assert f"{number.name} again: ended at once; checkpoint 2 is there; go on with: " in said
    assert find_newest_whole(folder / "checkpoints").step == 2
    run(folder, resume=True)
    assert [line["iteration"] for line in jsonl.read(folder / "metrics.jsonl")] == [*range(7)]


def test_one_signal_does_not_wait_for_the_time_outs_of_a_reward(tmp_path):
    """Three rounds of 300 s. The iteration is abandoned and repeated later."""
    folder, straight = tmp_path / "run", tmp_path / "straight"
    soon = {"tandem.threads.GRACE": 0.5}
    child = start(folder, FOURTH, in_python, changed=soon, timeout=300.0)
    wait_for(hanging_path(folder))
    os.kill(child.pid, signal.SIGTERM)
    child.join(SOON)
    assert child.exitcode == INTERRUPTED
    assert find_newest_whole(folder / "checkpoints").step == 3
    assert [line["iteration"] for line in jsonl.read(folder / "metrics.jsonl")] == [0, 1, 2]
    run(folder, resume=True)
    run(straight)
    assert jsonl.read(folder / "metrics.jsonl") == jsonl.read(straight / "metrics.jsonl")
    assert torch.equal(expected_table(folder), expected_table(straight))


@pytest.mark.parametrize("how", [in_python, in_c])
def test_a_run_without_progress_shows_its_stacks_and_ends_with_a_code_of_its_own(tmp_path, how):
    """The watchdog's clock goes an hour ahead when the reward hangs: before, no pause is too long,
    however much else the machine does."""
    folder = tmp_path / "run"
    watchdog = "tandem.training.callbacks.watchdog"
    clock = {f"{watchdog}.time": HourAhead(hanging_path(folder)), f"{watchdog}.LONGEST_PAUSE": 0.1}
    child = start(folder, FOURTH, how, changed=clock, guards=Guards(stalled_after=HOUR))
    child.join(SOON)
    assert child.exitcode == STALLED == 4
    said = log_path(folder).read_text()
    assert f"in {how.__name__}\n" in said  # the stack of the thread that hangs
    assert "in _watch\n" in said  # and of the others
    assert "stalled: no progress in 3600 s in iteration 3 on rank 0 (guards.stalled_after=" in said
    assert find_newest_whole(folder / "checkpoints").step == 2
    assert f"{command_to_resume(folder)} guards.stalled_after=7200\n" in said


def test_code_that_keeps_the_lock_of_the_interpreter_is_ended_with_its_stack(tmp_path):
    folder = tmp_path / "run"
    child = start(folder, FOURTH, in_c_with_the_lock, guards=Guards(stalled_after=0.5))
    child.join(SOON)
    assert child.exitcode == 1
    assert "in in_c_with_the_lock\n" in log_path(folder).read_text()


@pytest.mark.system
def test_every_rank_has_a_watchdog(tmp_path):
    folder = tmp_path / "run"
    child = start(folder, FOURTH // 2, in_python, guards=Guards(stalled_after=0.5), devices=2)
    child.join(SOON)
    assert child.exitcode
    assert "stalled: no progress in 0.5 s in iteration" in log_path(folder).read_text()


def test_slow_progress_is_progress(tmp_path):
    def slow(output, prompt) -> float:
        time.sleep(0.02)
        return output.count("3") / max(len(output), 1)

    run(tmp_path, reward=slow, guards=Guards(stalled_after=3.0))
    assert len(jsonl.read(tmp_path / "metrics.jsonl")) == 7


def test_a_hangup_that_nohup_ignores_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard = []

    def reward(output, prompt) -> float:
        heard.append(signal.getsignal(signal.SIGHUP))
        return output.count("3") / max(len(output), 1)

    try:
        run(tmp_path, reward=reward)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert set(heard) == {signal.SIG_IGN}


def wait_for(path) -> None:
    end = time.monotonic() + SOON
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_watch_has_ended_when_its_run_has():
    """A process that is forked while one is armed waits for ever where it arms its own."""
    watchdog = Watchdog(SimpleNamespace())
    module = SimpleNamespace(guards=SimpleNamespace(stalled_after=60.0), clock=Clock())
    watchdog.on_fit_start(None, module)
    watchdog.teardown(None, module, "fit")
    assert not watchdog.thread.is_alive()
