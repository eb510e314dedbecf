"""Several engines as one: the number of engines affects only the time, and one may be missing."""

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from loopback import ROWS, Loopback, serving, slowly
from small_language import questions
from torch.testing import assert_close

from tandem.policies.engines.fleet import Fleet
from tandem.policies.engines.protocol import Forgotten, RolloutEngine
from tandem.policies.engines.shared_groups import concat_answers
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.records import Answers
from tandem.policies.request import Request
from tandem.stop import EngineUnavailable

KEYS = torch.arange(24).reshape(8, 3)
PROMPTS = [[i] * (i + 1) for i in range(8)]


class Engine(RolloutEngine):
    """Answers each row with its key and its prompt; waits, forgets and dies on request."""

    def __init__(self, *, wait=0.0, dies_after=None, forgets=0):
        self.wait, self.dies_after, self.forgets = wait, dies_after, forgets
        self.version, self.calls, self.here = None, 0, True
        self.lock = threading.Lock()

    def is_there(self):
        return self.here

    def sync(self, weights, version):
        self.version = version

    def answer(self, prompts, keys, *, sampling, endings):
        time.sleep(self.wait)
        with self.lock:
            self.calls += 1
            if self.dies_after is not None and self.calls > self.dies_after:
                self.here = False
                raise EngineUnavailable("killed")
            if self.forgets > 0:
                self.forgets -= 1
                raise Forgotten("started again")
        rows = [[int(key), *prompt] for prompt, row in zip(prompts, keys, strict=True)
                for key in row]  # fmt: skip
        tokens = torch.tensor(rows)
        length = torch.full((len(rows),), tokens.shape[1])
        return Answers(tokens=tokens, logp=-tokens.float(), entropy=None, length=length,
                       truncated=length > 4)  # fmt: skip


def ask(fleet):
    return fleet.answer(PROMPTS, KEYS, sampling=None, endings=None)


def fleet_of(*engines, concurrency=6):
    fleet = Fleet(engines, concurrency=concurrency)
    fleet.sync(None, "a-1")
    return fleet


def same(one, other):
    for name in ("tokens", "logp", "length", "truncated"):
        assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)


WHOLE = ask(fleet_of(Engine(), concurrency=1))


def test_rows_stand_in_the_order_of_their_prompts_padded_with_zeros():
    assert WHOLE.tokens[:, 0].tolist() == KEYS.flatten().tolist()
    assert WHOLE.tokens.shape == (24, 9)
    assert WHOLE.tokens[0, 2:].count_nonzero() == 0


@pytest.mark.parametrize("waits", [(0.0, 0.0), (0.0, 0.02), (0.03, 0.0, 0.001)])
def test_fast_and_slow_engines_share_the_groups_and_the_answers_are_the_same(waits):
    engines = [Engine(wait=wait) for wait in waits]
    same(ask(fleet_of(*engines)), WHOLE)
    assert sum(engine.calls for engine in engines) == len(PROMPTS)


def test_engines_that_are_as_fast_get_equal_shares_though_one_has_room_for_all():
    engines = [Engine(wait=0.05), Engine(wait=0.05)]
    same(ask(fleet_of(*engines, concurrency=1000)), WHOLE)
    assert [engine.calls for engine in engines] == [4, 4]


def test_an_engine_that_lags_holds_up_no_group_but_its_own():
    slow, fast = Engine(wait=0.5), Engine()
    same(ask(fleet_of(slow, fast, concurrency=3)), WHOLE)
    assert slow.calls <= 1


@pytest.mark.parametrize("after", range(4))
def test_the_groups_of_an_engine_that_is_killed_go_to_the_others(after):
    killed, other = Engine(dies_after=after, wait=0.005), Engine(wait=0.01)
    fleet = fleet_of(killed, other)
    same(ask(fleet), WHOLE)
    assert fleet.living == [other]
    same(ask(fleet), WHOLE)
    killed.here, killed.dies_after = True, None
    fleet.sync(None, "a-2")
    assert fleet.living == [killed, other]
    assert killed.version == "a-2"


def test_an_engine_that_was_started_again_is_given_the_newest_weights():
    again, other = Engine(forgets=1), Engine(wait=0.01)
    fleet = fleet_of(again, other)
    again.version = "default"
    same(ask(fleet), WHOLE)
    assert again.version == "a-1"
    assert fleet.living == [again, other]


def test_an_engine_that_was_started_again_in_a_handover_gets_one_version_at_a_time():
    begun, loading, most = threading.Event(), [], []

    class Loading(Engine):
        def sync(self, weights, version):
            loading.append(version)
            most.append(len(loading))
            begun.set()
            time.sleep(0.1)
            self.version = loading.pop()

    fleet = Fleet([Loading(forgets=1)], concurrency=6)
    handover = threading.Thread(target=fleet.sync, args=(None, "a-1"))
    handover.start()
    assert begun.wait(5)
    same(ask(fleet), WHOLE)
    handover.join()
    assert most == [1, 1]


def test_one_that_is_gone_before_the_handover_costs_seconds_and_no_run():
    gone, other = Engine(), Engine()
    gone.here = False
    fleet = fleet_of(gone, other)
    same(ask(fleet), WHOLE)
    assert (gone.version, other.version) == (None, "a-1")


@pytest.mark.parametrize("back", [False, True])
def test_one_that_is_gone_gets_no_group_before_it_has_the_next_weights(back):
    gone, other = Engine(dies_after=0), Engine()
    fleet = fleet_of(gone, other)
    same(ask(fleet), WHOLE)
    asked, gone.dies_after = gone.calls, None
    probed, let_go = threading.Event(), threading.Event()

    def is_there():
        probed.set()
        return let_go.wait(5) and back

    gone.is_there = is_there
    handover = threading.Thread(target=fleet.sync, args=(None, "a-2"))
    handover.start()
    assert probed.wait(5)
    same(ask(fleet), WHOLE)
    let_go.set()
    handover.join()
    assert gone.calls == asked
    assert (gone in fleet.living) == back


def test_where_none_is_left_each_says_why():
    fleet = fleet_of(Engine(dies_after=1), Engine(dies_after=2))
    with pytest.raises(EngineUnavailable, match="no engine is left: killed; killed"):
        ask(fleet)
    with pytest.raises(EngineUnavailable, match="it does not respond; it does not respond"):
        fleet.sync(None, "a-2")


def test_a_fault_of_another_kind_ends_the_call_and_keeps_nobody_waiting():
    class Broken(Engine):
        def answer(self, prompts, keys, *, sampling, endings):
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        ask(fleet_of(Broken(), Engine(wait=0.02), Engine(wait=0.02)))


def test_an_entropy_is_kept_where_all_say_one():
    silent = Engine().answer(PROMPTS[:1], KEYS[:1], sampling=None, endings=None)
    telling = replace(silent, entropy=silent.logp)
    assert concat_answers([telling, telling]).entropy.shape == (6, 2)
    assert concat_answers([telling, silent]).entropy is None


def test_versions_are_kept_where_all_say_them():
    silent = Engine().answer(PROMPTS[:1], KEYS[:1], sampling=None, endings=None)
    telling = replace(silent, version=silent.tokens)
    assert concat_answers([telling, telling]).version.shape == (6, 2)
    assert concat_answers([silent, telling]).version is None


@contextmanager
def host(folder, place, count, *, timeout=1.0):
    """(servers, a policy that samples from them)."""
    with ExitStack() as stack:
        states = [Loopback(folder) for _ in range(count)]
        urls = [stack.enter_context(serving(state)) for state in states]
        quick = {"timeout": timeout, "patience": 4.0, "concurrency": 4}
        engine = VllmServer(url=urls, folder=str(place), **quick)
        policy = LanguagePolicy(path=folder)
        policy.load(Request(sampling=Sampling(max_new_tokens=6, engine=engine)))
        yield states, policy


def sample(policy, key=5):
    return policy.sample(questions()[:4], 2, key=key, slots=range(4))


def test_two_servers_say_what_one_says_and_follow_the_weights(folder, tmp_path):
    found = []
    for count in (1, 2):
        with host(folder, tmp_path / str(count), count) as (states, policy):
            before = sample(policy)
            torch.manual_seed(0)
            with torch.no_grad():
                for parameter in policy.trainable().values():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            policy.notify("update")
            policy.notify("iteration")
            found.append((before, sample(policy, key=6)))
            for state in states:
                assert len(state.paths("/collective_rpc")) == 2
                assert state.rows()
    for one, two in zip(*found, strict=True):
        assert_close(one.sample.tokens, two.sample.tokens, rtol=0, atol=0)
        assert_close(one.behaviour_logp, two.behaviour_logp, rtol=0, atol=0)


def test_a_server_that_ends_in_the_middle_costs_no_token(folder, tmp_path):
    with host(folder, tmp_path / "one", 1) as (_, policy):
        whole = sample(policy)
    with host(folder, tmp_path / "two", 2) as (states, policy):
        count = iter(range(100))
        states[0].habits.spoil = lambda path, _: (
            (503, b"") if path in ROWS and next(count) > 1 else None
        )
        assert_close(sample(policy).sample.tokens, whole.sample.tokens, rtol=0, atol=0)


def test_a_row_of_several_servers_may_take_as_long_as_an_attempt(folder, tmp_path):
    with host(folder, tmp_path, 2, timeout=30.0) as (states, policy):
        for state in states:
            state.habits.spoil = slowly(1.5)  # more than a quarter of the patience
        sample(policy)
        assert len(policy.supply.engine.living) == 2


def test_of_several_servers_one_that_is_slower_than_an_attempt_may_be_is_told_so(folder, tmp_path):
    with host(folder, tmp_path, 2, timeout=1.2) as (states, policy):
        for state in states:
            state.habits.spoil = slowly(3.0)
        with pytest.raises(
            EngineUnavailable, match=r"within 1\.2 s; see rollout\.engine\.timeout;"
        ):
            sample(policy)


def test_no_server_is_waited_for_longer_than_the_patience(folder, tmp_path):
    with host(folder, tmp_path, 2, timeout=30.0) as (_, policy):
        limits = [engine.endpoint.limits for engine in policy.supply.engine.engines]
        assert [one.deadline for one in limits] == [4.0, 4.0]
