"""Servers that never answer: a run that was told to end leaves their requests behind."""

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tandem.policies.engines.fleet import Fleet
from tandem.policies.engines.journey import Journey
from tandem.policies.engines.protocol import RolloutEngine
from tandem.policies.engines.replies import Generation
from tandem.policies.engines.transfer import run_in_thread
from tandem.policies.engines.vllm_client import VllmClient
from tandem.policies.language.records import Endings, Sampling, TokenSample
from tandem.policies.language.teacher_server import ServedTeacher
from tandem.stop import Abandoned
from tandem.threads import ENDING, call_in_thread

LIMIT = 20.0  # seconds until a test that hangs fails
PROMPTS, KEYS = [[1]], torch.tensor([[7]])
ROWS = {
    "sampling": Sampling(max_new_tokens=5),
    "endings": Endings(tokens=(), strings=(), decode=list),
}


class Hung(RolloutEngine):
    """An engine whose calls all hang."""

    def __init__(self, hang):
        self.is_there = self.answer = self.sync = lambda *_, **__: hang()

    def answer(self, prompts, keys, *, sampling, endings): ...

    def sync(self, weights, version): ...


class HungTeacher(ServedTeacher):
    def __init__(self, hang):
        self.top_k, self.concurrency, self._row = 0, 4, lambda *_: hang()


def request_rows(hang):
    server = SimpleNamespace(post=lambda *_, **__: hang(), url="http://a:1")
    own = {"probe": server, "store": None, "model": "m", "vocabulary": 9, "concurrency": 4}
    client = VllmClient(server, **own)
    client.kind = Generation
    client.answer(PROMPTS, KEYS, **ROWS)


def request_groups(hang):
    Fleet([Hung(hang), Hung(hang)], concurrency=4).answer(PROMPTS, KEYS, **ROWS)


def hand_over_to_several(hang):
    Fleet([Hung(hang), Hung(hang)], concurrency=4).sync(None, "a-1")


def hand_over_beside_training(hang):
    journey = Journey()
    journey.begin(hang)
    journey.end()


def transfer(hang):
    with run_in_thread(hang):
        pass


def query_teacher(hang):
    tokens, ones = torch.ones(2, 5, dtype=torch.int64), torch.ones(2)
    sample = TokenSample(tokens=tokens, prompt_length=2 * ones.long(), temperature=ones)
    HungTeacher(hang).judge(sample, torch.ones(2, 3, dtype=torch.bool))


CALLS = [
    request_rows, request_groups, hand_over_to_several, hand_over_beside_training, transfer,
    query_teacher,
]  # fmt: skip


def hand_over():
    time.sleep(0.3)
    print("handed over")


def leave():
    """End this process with code 75 while all calls hang.

    A thread that computes with torch as Python ends would abort the process; these only wait."""
    all_hang = threading.Barrier(1 + len(CALLS))
    once = {call: threading.Lock() for call in CALLS}

    def hang(call):
        if once[call].acquire(blocking=False):
            all_hang.wait(LIMIT)
        threading.Event().wait(LIMIT)

    for call in CALLS:
        call_in_thread(call, partial(hang, call))
    all_hang.wait(LIMIT)
    Journey().begin(hand_over)
    sys.exit(75)


def test_a_process_ends_though_no_server_answers_and_a_short_handover_ends_first():
    command = [sys.executable, "-c", "import test_hanging_servers; test_hanging_servers.leave()"]
    started = time.monotonic()
    ended = subprocess.run(command, check=False, cwd=Path(__file__).parent, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (75, b"handed over\n")
    assert time.monotonic() - started < LIMIT


def test_a_handover_that_the_run_waited_for_has_the_grace_period_too(monkeypatch):
    let_go, done, journey = threading.Event(), [], Journey()
    journey.begin(lambda: done.append(let_go.wait(LIMIT)))
    monkeypatch.setattr(ENDING, "since", -float("inf"))
    with pytest.raises(Abandoned):
        journey.end()
    threading.Timer(0.2, let_go.set).start()
    journey._let_end()
    assert done == [True]


@pytest.mark.parametrize("call", CALLS)
def test_a_run_that_was_told_to_end_waits_for_no_server(call, monkeypatch):
    hangs, let_go = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        assert let_go.wait(LIMIT)

    asked = call_in_thread(call, hang)
    assert hangs.wait(LIMIT)
    assert not asked.done()
    monkeypatch.setattr(ENDING, "since", -float("inf"))  # the grace period is over
    assert isinstance(asked.exception(LIMIT), Abandoned)
    let_go.set()
