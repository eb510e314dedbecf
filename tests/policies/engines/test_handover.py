"""Weight handovers with rows in flight: which rows wait, which continue, and under what version."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import torch
from loopback import Habits, Loopback, serving
from small_language import NOTHING, questions
from torch.testing import assert_close

from tandem.policies.engines.protocol import Forgotten, RolloutEngine
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Endings, Sampling
from tandem.policies.language.sampling import as_rollout
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.stop import EngineUnavailable

ADAPTERS = Lora(r=2, alpha=4)
SAMPLING = Sampling(max_new_tokens=6)
KEYS = torch.arange(6).reshape(3, 2)
WAIT = 20  # seconds; normally it takes none


@pytest.fixture
def hosted(folder, tmp_path):
    """(handover, ...) -> servers, and a policy that samples from them."""

    @contextmanager
    def host(handover, *, lora=None, staleness=1, count=1):
        with ExitStack() as stack:
            states = [Loopback(folder, Habits()) for _ in range(count)]
            server = VllmServer(
                url=[stack.enter_context(serving(state)) for state in states],
                folder=str(tmp_path), timeout=9.0, patience=9.0, concurrency=16,
            )  # fmt: skip
            policy = LanguagePolicy(path=folder, lora=lora)
            policy.load(
                Request(
                    sampling=Sampling(
                        max_new_tokens=6, engine=server, handover=handover, staleness=staleness
                    )
                )
            )
            yield states if count > 1 else states[0], policy
            policy.supply.journey.end()

    return host


def move(policy, by=0.3):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(by * torch.randn_like(parameter))


def publish(policy):
    policy.supply.publish()
    policy.supply.journey.end()


def ask(policy, engine):
    """Rows as an engine returns them."""
    endings = Endings(tokens=(), strings=(), decode=policy.chat.decode_all)  # all are six long
    prompts = policy.chat.encode(questions()[:3])
    return engine.answer(prompts, KEYS, sampling=SAMPLING, endings=endings)


def fits(policy, answers):
    """For each token, whether the trainer's log-probability equals the engine's."""
    own = policy.ask(questions()[:3], range(3), group_size=2, key=0, sampling=SAMPLING)
    rows = as_rollout(own, answers, policy.chat)
    return (policy.evidence(rows, NOTHING).logp - answers.logp).abs() < 1e-5


@contextmanager
def standing_at(state, count):
    """Rows that wait before a token until released: (wait for all, release)."""
    there, go = threading.Barrier(7), threading.Event()

    def wait(tokens):
        if tokens == count and not go.is_set():
            there.wait(WAIT)
            assert go.wait(WAIT)

    state.habits.before_token = wait
    yield (lambda: there.wait(WAIT)), go.set
    go.set()


def test_weights_are_published_as_they_were_though_training_goes_on(hosted):
    with hosted("drain") as (_, policy):
        before = {name: p.detach().clone() for name, p in policy.trainable().items()}
        policy.supply.publish()
        move(policy)
        policy.supply.journey.end()
        with policy.supply.under_way() as engine:
            answers = ask(policy, engine)
        assert engine.number == 1
        assert not fits(policy, answers).all()
        policy.load_weights(before)
        assert fits(policy, answers).all()


def test_rows_of_a_pinned_version_go_on_under_its_name(hosted):
    with hosted("pinned", lora=ADAPTERS) as (_, policy), ExitStack() as stack:
        publish(policy)
        older = stack.enter_context(policy.supply.under_way())
        before = ask(policy, older)
        move(policy)
        publish(policy)
        newer = stack.enter_context(policy.supply.under_way())
        again = ask(policy, older)
        assert_close(again.logp, before.logp, rtol=0, atol=0)
        assert (again.version == 1).all()
        assert (ask(policy, newer).version == 2).all()
        assert not fits(policy, again).all()
        assert fits(policy, ask(policy, newer)).all()


def test_so_many_adapters_stay_loaded_as_rows_may_need(hosted, tmp_path):
    with hosted("pinned", lora=ADAPTERS, staleness=2) as (state, policy):
        for _ in range(5):
            publish(policy)
        assert [name.rpartition("-")[2] for name in state.adapters] == ["3", "4", "5"]
        (home,) = tmp_path.iterdir()
        kept = sorted(path.name[-1] for path in home.iterdir() if path.name != "owner")
        assert kept == ["2", "3", "4", "5"]  # and the previous one for comparison


def test_a_server_that_was_started_again_gets_the_version_that_rows_were_begun_with(hosted):
    with hosted("pinned", lora=ADAPTERS) as (state, policy):
        publish(policy)
        with policy.supply.under_way() as older:
            before = ask(policy, older)
            move(policy)
            publish(policy)
            state.start()
            assert_close(ask(policy, older).logp, before.logp, rtol=0, atol=0)
        with policy.supply.under_way() as newer:
            assert fits(policy, ask(policy, newer)).all()


def test_of_two_servers_one_that_was_started_again_gets_the_older_version_too(hosted):
    with hosted("pinned", lora=ADAPTERS, count=2) as (states, policy):
        publish(policy)
        with policy.supply.under_way() as older:
            before = ask(policy, older)
            move(policy)
            publish(policy)
            states[0].start()
            for _ in range(3):
                assert_close(ask(policy, older).logp, before.logp, rtol=0, atol=0)
            assert len(policy.supply.engine.living) == 2


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_with_drain_weights_wait_for_the_rows_that_are_under_way(hosted, lora):
    with hosted("drain", lora=lora) as (_, policy), ThreadPoolExecutor(2) as pool:
        publish(policy)
        supply = policy.supply
        with supply.under_way() as engine:
            supply.publish()
            late = pool.submit(begin, policy)
            answers = ask(policy, engine)
            assert not supply.journey.is_over
            assert not late.done()
        assert (answers.version == 1).all()
        assert (late.result(WAIT).version == 2).all()


def begin(policy):
    with policy.supply.under_way() as engine:
        return ask(policy, engine)


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_in_flight_rows_go_on_with_new_weights_and_each_token_says_so(hosted, lora):
    with hosted("in_flight", lora=lora) as (state, policy), ThreadPoolExecutor(1) as pool:
        publish(policy)
        before = {name: p.detach().clone() for name, p in policy.trainable().items()}
        with standing_at(state, 4) as (all_stand, go):
            rows = pool.submit(begin, policy)
            all_stand()
            move(policy)
            publish(policy)
            go()
            answers = rows.result(WAIT)
        assert answers.version.tolist() == [[1, 1, 1, 1, 2, 2]] * 6
        assert fits(policy, answers)[:, 4:].all()
        policy.load_weights(before)
        assert fits(policy, answers)[:, :4].all()
        assert not fits(policy, answers)[:, 4:].all()


def test_in_flight_an_adapter_takes_the_place_of_the_one_before(hosted):
    with hosted("in_flight", lora=ADAPTERS) as (state, policy):
        for _ in range(3):
            move(policy)
            publish(policy)
        assert list(state.adapters) == [policy.supply.run]
        assert not state.paths("/v1/unload_lora_adapter")
        assert fits(policy, begin(policy)).all()
        state.start()
        assert fits(policy, begin(policy)).all()


@pytest.mark.parametrize("handover", ["pinned", "drain", "in_flight"])
def test_a_run_that_does_not_sample_ahead_has_the_newest_weights_by_every_mode(hosted, handover):
    with hosted(handover, lora=ADAPTERS, staleness=0) as (_, policy):
        for _ in range(2):
            rollout = policy.sample(questions()[:3], 2, key=5, slots=range(3))
            assert_close(policy.evidence(rollout, NOTHING).logp, rollout.behaviour_logp,
                         atol=1e-5, rtol=0)  # fmt: skip
            move(policy)
            policy.notify("update")
            policy.notify("iteration")


def test_a_handover_that_fails_is_told_at_the_next_one(hosted):
    with hosted("drain") as (state, policy):
        publish(policy)
        state.habits.spoil = lambda path, _: (400, b"{}") if path == "/collective_rpc" else None
        policy.supply.publish()
        with pytest.raises(EngineUnavailable, match="/collective_rpc: 400"):
            policy.supply.publish()


class Plain(RolloutEngine):
    """An engine with two methods."""

    def sync(self, weights, version):
        self.version = version

    def answer(self, prompts, keys, *, sampling, endings):
        return self.version


class Live:
    adapter = is_sharded = False

    def copy_to_host(self):
        return self


def test_an_engine_of_two_methods_can_drain():
    sync, held = WeightSync(Plain(), Live()), []
    sync.journey.meet = lambda fault: held.append(sync.journey.renewing.locked())
    sync.publish()
    sync.journey.end()
    assert held == [True, True]  # no rank gives lost weights again while the first gives new ones
    with sync.under_way() as engine:
        said = engine.answer([], KEYS, sampling=None, endings=None)
    assert (said, engine.number) == (sync.version, 1)


class Counted(Plain):
    """Counts the calls of `answer` at once."""

    def __init__(self):
        self.lock, self.calls, self.most = threading.Lock(), 0, 0

    def answer(self, prompts, keys, *, sampling, endings):
        with self.lock:
            self.calls += 1
            self.most = max(self.most, self.calls)
        time.sleep(0.05)
        with self.lock:
            self.calls -= 1


class AtOnce(Counted):
    concurrent = True


@pytest.mark.parametrize(("kind", "most"), [(Counted, 1), (AtOnce, 4)])
def test_rows_of_an_engine_are_asked_for_at_once_if_it_says_so(kind, most):
    sync = WeightSync(kind(), Live())
    publish(SimpleNamespace(supply=sync))
    with sync.under_way() as ahead, ThreadPoolExecutor(4) as pool:
        asked = {"sampling": None, "endings": None}
        calls = [
            pool.submit(each.answer, [], KEYS, **asked) for each in (ahead, ahead, ahead, sync)
        ]
    assert [call.result(WAIT) for call in calls] == [None] * 4
    assert sync.engine.most == most


def test_lost_weights_are_given_again_in_turn_too():
    class Forgetful(Plain):
        first, at_once = True, False

        def __init__(self):
            self.busy = threading.Event()

        def answer(self, prompts, keys, *, sampling, endings):
            if self.first:
                self.first = False
                raise Forgotten("it started again")
            self.busy.set()
            time.sleep(0.2)
            self.busy.clear()

        def renew(self, weights, version):
            self.at_once = self.busy.is_set()

    sync = WeightSync(Forgetful(), Live())
    publish(SimpleNamespace(supply=sync))
    asked = {"sampling": None, "endings": None}
    with sync.under_way() as ahead, ThreadPoolExecutor(2) as pool:
        with sync.journey.renewing:
            calls = [pool.submit(ahead.answer, [], KEYS, **asked) for _ in range(2)]
            assert sync.engine.busy.wait(WAIT)  # one lost the weights, and the other is answered
        assert [call.result(WAIT) for call in calls] == [None] * 2
    assert not sync.engine.at_once


@pytest.mark.parametrize("handover", ["pinned", "in_flight"])
def test_a_mode_that_an_engine_has_not_is_refused_by_those_that_it_has(handover):
    with pytest.raises(ValueError, match=f"rollout.handover={handover}: Plain supports drain"):
        WeightSync(Plain(), Live(), handover=handover)
