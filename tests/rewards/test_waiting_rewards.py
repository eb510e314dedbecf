"""Rewards that wait for a server or a process run concurrently, each in order."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tandem import threads
from tandem.rewards import Reward, Rewards, batched, concurrency, waits
from tandem.stop import Abandoned
from tandem.threads import ENDING
from tandem.types import Prompt

PROMPTS = {slot: Prompt(id=slot, source="s", text="?") for slot in range(4)}
LIMIT = 10.0  # seconds; without it a failing test would hang


def ask(rewards, count=4):
    return rewards([str(i) for i in range(count)], [PROMPTS[i] for i in range(count)])


def test_those_that_wait_are_asked_at_the_same_time_and_those_that_compute_where_we_are():
    both_there, threads = threading.Barrier(2, timeout=LIMIT), {}

    def met(name, output, prompt):
        both_there.wait()
        threads[name] = threading.current_thread()
        return float(prompt.id)

    def computed(output, prompt):
        threads["here"] = threading.current_thread()
        return 10.0

    rewards = Rewards(
        {
            "a": Reward(waits(lambda o, p: met("a", o, p))),
            "here": Reward(computed),
            "b": Reward(waits(lambda o, p: met("b", o, p))),
        }
    )
    scores = ask(rewards)
    assert scores.total.tolist() == [10.0, 12.0, 14.0, 16.0]
    assert list(scores.parts) == ["a", "here", "b"]
    assert threads["here"] is threading.current_thread()
    assert len({*threads.values()}) == 3


def test_a_hang_costs_its_timeout_and_no_other_score_and_faults_keep_their_order():
    together = threading.Barrier(3)

    @waits
    def hangs(output, prompt):
        if prompt.id == 1:
            together.wait()  # for the other two: called in sequence they would never meet
            met.append(prompt.id)
            threading.Event().wait()
        return 1.0

    met: list[int] = []
    slow = {name: Reward(hangs, timeout=1.0) for name in ("a", "b", "c")}
    rewards = Rewards({**slow, "fine": Reward(lambda o, p: p.id / 0 if p.id == 3 else 2.0)})
    scores = ask(rewards)
    assert met == [1, 1, 1]
    assert scores.scored.tolist() == [True, False, True, False]
    assert scores.total.tolist() == [5.0, 0.0, 5.0, 0.0]
    faults = rewards.pop_faults().items()
    assert [(reason.partition(" at ")[0], count) for reason, count in faults] == [
        ("a: timed out", 1),
        ("b: timed out", 1),
        ("c: timed out", 1),
        ("fine: raised ZeroDivisionError: 'division by zero'", 1),
    ]


def test_a_reward_is_asked_of_one_part_after_another():
    seen, busy = [], threading.Lock()

    @waits
    @batched
    def judge(outputs, prompts):
        assert busy.acquire(blocking=False)
        time.sleep(0.01)
        seen.append(outputs)
        busy.release()
        return [1.0] * len(outputs)

    rewards = Rewards({"judge": Reward(judge)})
    begun = [rewards.begin([str(i)], [PROMPTS[i]]) for i in range(4)]
    assert [answered().total.item() for answered in reversed(begun)] == [1.0] * 4
    assert seen == [["0"], ["1"], ["2"], ["3"]]


def test_as_many_calls_as_a_reward_declares_wait_at_the_same_time():
    four_there, seen = threading.Barrier(4, timeout=LIMIT), []

    @waits(at_once=4)
    def judge(output, prompt):
        seen.append(threading.current_thread())
        four_there.wait()
        return float(output)

    rewards = Rewards({"judge": Reward(judge)})
    scores = ask(rewards)
    assert scores.total.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(set(seen)) == 4


def test_batches_are_asked_at_the_same_time_too_and_no_more_than_declared():
    busy, most, lock = 0, 0, threading.Lock()

    @batched
    @waits(at_once=2)
    def judge(outputs, prompts):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.02)
        with lock:
            busy -= 1
        return [float(output) for output in outputs]

    reward = Reward(judge, batch_size=2)
    values, faults = reward([str(i) for i in range(12)], [PROMPTS[0]] * 12)
    assert (values, faults) == ([float(i) for i in range(12)], {})
    assert most == 2


def test_of_calls_at_once_one_that_hangs_costs_its_own_sample_only():
    @waits(at_once=2)
    def judge(output, prompt):
        return threading.Event().wait() if output == "3" else float(output)

    reward = Reward(judge, timeout=0.2)
    values, faults = reward([str(i) for i in range(8)], [PROMPTS[0]] * 8)
    assert values == [0.0, 1.0, 2.0, None, 4.0, 5.0, 6.0, 7.0]
    assert faults == {"timed out": 1}


def test_a_run_that_was_told_to_end_does_not_wait_for_a_hanging_server(monkeypatch):
    let_go = threading.Event()

    @waits
    def hangs(output, prompt):
        let_go.wait(LIMIT)
        return 1.0

    rewards = Rewards({"hangs": Reward(hangs)})
    answered = rewards.begin(["a"], [PROMPTS[0]])
    monkeypatch.setattr(ENDING, "since", -float("inf"))  # the grace period is over
    with pytest.raises(Abandoned):
        answered()
    let_go.set()
    rewards.queues["hangs"].last.result(LIMIT)
    assert answered().total.tolist() == [1.0]  # what is there already is taken


def test_calls_of_a_reward_that_the_end_of_a_run_cut_short_are_no_fault(monkeypatch):
    let_go = threading.Event()

    @batched
    @waits
    def asks_at_once(outputs, prompts):
        return concurrency.at_once(1, let_go.wait, [(LIMIT,) for _ in outputs])

    rewards = Rewards({"asks": Reward(asks_at_once)})
    monkeypatch.setattr(ENDING, "since", -float("inf"))  # the grace period is over
    rewards.begin(["a"], [PROMPTS[0]])
    with pytest.raises(Abandoned):  # not a missing number, which a checkpoint would keep
        rewards.queues["asks"].last.result(LIMIT)
    let_go.set()


def test_at_once_is_at_least_one():
    with pytest.raises(ValueError, match="at_once=0 of @waits must be at least 1"):
        waits(at_once=0)


def test_calls_that_two_threads_put_at_once_come_one_after_another(monkeypatch):
    class SlowFuture(Future):
        def __init__(self):
            time.sleep(0.05)  # long enough for the other thread to read the last value
            super().__init__()

    monkeypatch.setattr(threads, "Future", SlowFuture)
    queue, running, most = concurrency.CallQueue(), [], []

    def call(number):
        running.append(number)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(number)
        return number

    with ThreadPoolExecutor(4) as pool:
        futures = list(pool.map(lambda number: queue.put(call, number), range(4)))
    assert [future.result(5.0) for future in futures] == [0, 1, 2, 3]
    assert most == [1] * 4
