"""Weights sent by vLLM's own transfer: every tensor arrives, and nothing is written to disk."""

import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Event, local
from types import ModuleType, SimpleNamespace

import pytest
import requests
import torch
from loopback import Habits, Loopback, serving
from small_language import NOTHING, questions

from tandem import distributed
from tandem.policies.engines import vllm_checks
from tandem.policies.engines.transfer import SENDERS, run_in_thread
from tandem.policies.engines.vllm_api import VllmApi
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.engines.weight_files import WeightFiles
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.stop import EngineUnavailable

ADAPTERS = Lora(r=2, alpha=4)


@pytest.fixture
def hosted(folder, tmp_path):
    """A server that receives weights by gloo, and a policy that samples from it."""

    @contextmanager
    def host(handover="drain"):
        state = Loopback(folder)
        with serving(state) as url:
            engine = VllmServer(
                url=url, folder=str(tmp_path), transfer="broadcast", timeout=9.0, patience=9.0
            )
            policy = LanguagePolicy(path=folder)
            sampling = Sampling(max_new_tokens=5, engine=engine, handover=handover)
            engine.check(sampling, None)
            policy.load(Request(sampling=sampling))
            yield state, policy
            assert not list(tmp_path.iterdir())

    return host


def move(policy):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    policy.notify("update")
    policy.notify("iteration")


def gap(policy, key):
    rollout = policy.sample(questions()[:2], 2, key=key, slots=range(2))
    return float((policy.evidence(rollout, NOTHING).logp - rollout.behaviour_logp).abs().max())


@pytest.mark.parametrize("handover", ["drain", "in_flight"])
def test_every_tensor_is_the_trainers_bit_for_bit_and_nothing_is_written(hosted, handover):
    with hosted(handover) as (state, policy):
        for key in range(3):
            assert gap(policy, key) < 1e-5
            want = WeightFiles(policy.network, adapter=False).tensors()
            assert list(state.received) == list(want)
            assert all(torch.equal(state.received[name], want[name]) for name in want)
            move(policy)
        assert len(state.paths("/init_weight_transfer_engine")) == 1
        assert len(state.paths("/update_weights")) == 3


def test_the_names_are_those_of_the_files(hosted, folder, tmp_path):
    from safetensors.torch import load_file, save_file

    with hosted() as (_, policy):
        weights = WeightFiles(policy.network, adapter=False)
        weights.save(tmp_path.with_name("written"))
        (file,) = tmp_path.with_name("written").glob("*.safetensors")
        files, tensors = load_file(file), weights.tensors()
        assert files.keys() == tensors.keys()
        assert all(torch.equal(files[name], tensors[name]) for name in files)
        with weights.as_in(file.parent) as whole:
            assert whole
        files.pop(next(name for name in files if name.endswith("down_proj.weight")))
        save_file(files, file, {"format": "pt"})
        with weights.as_in(file.parent) as whole:  # the other weights would be of another handover
            assert not whole


def test_copies_are_sent_as_they_were_though_training_goes_on(hosted):
    with hosted() as (state, policy):
        before = {name: p.detach().clone() for name, p in policy.trainable().items()}
        policy.supply.publish()
        move(policy)
        policy.supply.journey.end()
        assert all(torch.equal(state.received[name], before[name]) for name in state.received)


def test_a_server_that_was_started_again_is_met_anew(hosted):
    with hosted() as (state, policy):
        gap(policy, 0)
        state.start()
        state.group = None
        assert gap(policy, 1) < 1e-5
        assert len(state.paths("/init_weight_transfer_engine")) == 2


def test_a_rank_without_weights_says_so(hosted):
    with hosted() as (_, policy):
        gap(policy, 0)
        empty = policy.files.copy_to_host()
        empty = replace(empty, own={})
        with pytest.raises(EngineUnavailable, match="this rank has none to send"):
            policy.supply.engine.sync(empty, policy.supply.version)


def test_an_error_of_vllms_http_client_is_a_server_that_is_gone(hosted):
    class Lost:
        def send(self, tensors):
            raise requests.ConnectionError("refused")

    with hosted() as (_, policy):
        gap(policy, 0)
        engine = policy.supply.engine
        engine.broadcast.sender = Lost()
        with pytest.raises(EngineUnavailable, match="refused"):
            engine.broadcast.send(policy.files, met=True)
        assert engine.broadcast.sender is None  # the next handover meets it anew


class Slow:
    """The trainer's end, which has the whole weights on its GPU while it sends them."""

    def __init__(self, states, sending):
        self.states, self.sending = states, sending

    def send(self, tensors):
        self.sending.append(len(self.sending))
        time.sleep(0.05)
        paused = sum(state.paused for state in self.states)
        self.most = len(self.sending), paused
        self.sending.pop()


@pytest.mark.parametrize(("handover", "paused"), [("drain", 0), ("in_flight", 1)])
def test_several_servers_receive_the_weights_one_by_one(folder, tmp_path, handover, paused):
    states, sending = [Loopback(folder) for _ in range(3)], []
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(state)) for state in states]
        options = {"transfer": "broadcast", "timeout": 9.0, "patience": 9.0}
        policy = LanguagePolicy(path=folder)
        engine = VllmServer(url=urls, folder=str(tmp_path), **options)
        policy.load(Request(sampling=Sampling(max_new_tokens=5, engine=engine, handover=handover)))
        fleet = policy.supply.engine
        for state, client in zip(states, fleet.engines, strict=True):
            state.version, client.broadcast.sender = client.newest, Slow(states, sending)
        give = fleet.sync if handover == "drain" else fleet.swap
        give(policy.files, "run-1")
        assert not fleet.faults
        assert [client.broadcast.sender.most for client in fleet.engines] == [(1, paused)] * 3


def test_a_server_that_refuses_to_meet_is_told_by_its_reason():
    refused = Event()

    def refuse():
        refused.set()
        raise EngineUnavailable("400 wrong size")

    def meet():
        assert refused.wait(5)
        time.sleep(0.2)
        raise RuntimeError("nobody came in time")

    with pytest.raises(EngineUnavailable, match="400 wrong size"), run_in_thread(refuse):
        meet()


def test_an_end_that_breaks_first_is_told_by_its_own_reason():
    ended = Event()
    with (
        pytest.raises(RuntimeError, match="nobody came in time"),
        run_in_thread(lambda: ended.wait(20)),
    ):
        raise RuntimeError("nobody came in time")
    ended.set()


def test_ipc_is_refused_on_several_ranks_as_the_others_would_be_waited_for(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=r"set rollout\.engine\.transfer=files"):
        SENDERS["ipc"](None, 1.0, torch.device("cuda", 0))


def test_a_trainer_without_a_gpu_is_told_so():
    with pytest.raises(RuntimeError, match=r"the trainer is on cpu; set rollout\.engine\.transfer"):
        SENDERS["nccl"](None, 1.0, torch.device("cpu"))


class OfVllm:
    """vLLM's trainer half as of 0.32, without its data plane: it asks the server as that does."""

    def __init__(self, client, source):
        self.client, self.source, self.on = client, source, [current.on]
        client.init_weight_transfer_engine({"master_address": "here"})

    def send_weights(self):
        self.on.append(current.on)
        self.client.start_weight_update()
        self.client.update_weights({"names": [meta.name for meta in self.source.metadata()]})
        self.client.finish_weight_update()
        self.sent = dict(self.source)


current = local()  # a thread's GPU, which is the first one unless it is chosen


@contextmanager
def chosen(device):
    before, current.on = getattr(current, "on", 0), device.index
    yield
    current.on = before


class OwnHttp:
    """vLLM's HTTP client, whose own requests carry no key."""

    def __init__(self, base_url, timeout):
        self.init_weight_transfer_engine = lambda info: self._post("init_weight_transfer_engine")
        self.update_weights = lambda info: self._post("update_weights", {"update_info": info})
        self.start_weight_update = lambda: self._post("start_weight_update")
        self.finish_weight_update = lambda: self._post("finish_weight_update")

    def _post(self, path, json=None):
        raise AssertionError("a request without the server's key")


@pytest.fixture
def vllm(monkeypatch):
    """The parts of vLLM that a sender imports, and a GPU of number 3."""
    package, nccl = ModuleType("vllm.distributed.weight_transfer"), ModuleType("nccl_engine")
    package.HTTPVLLMWeightSyncClient, package.WeightSource = OwnHttp, object
    package.ParamMeta = namedtuple("ParamMeta", "name dtype shape")
    package.WeightTransferTrainerFactory = SimpleNamespace(
        trainer_init=lambda info, *, client, source: OfVllm(client, source)
    )
    nccl.NCCLTrainerInitInfo = SimpleNamespace
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, f"{package.__name__}.nccl_engine", nccl)
    monkeypatch.setattr(torch.cuda, "device", chosen)
    return package


def test_a_thread_sends_from_the_trainers_gpu_with_the_servers_key(folder, vllm, monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "secret")
    state = Loopback(folder, Habits(transfer="nccl", api_key="secret"))
    state.meet = state.update = state.start_update = state.finish_update = lambda *_: (200, {})
    with serving(state) as url:
        engine = VllmServer(url=url, folder="unused", api_key_env="KEY_OF_TEST", patience=9.0)
        api = VllmApi(engine.endpoint(url))
        weight = torch.ones(2, device="meta")
        with ThreadPoolExecutor(1) as pool:
            sender = pool.submit(SENDERS["nccl"], api, 9.0, torch.device("cuda", 3)).result()
            moved = []
            monkeypatch.setattr(torch.Tensor, "to", lambda own, device: moved.append(device) or own)
            pool.submit(sender.send, {"weight": weight}).result()
    assert sender.engine.on == [3, 3]
    assert sender.engine.sent.keys() == {"weight"} and moved == [torch.device("cuda", 3)]
    assert state.paths("/update_weights") and state.paths("/finish_weight_update")


@pytest.mark.parametrize(
    ("transfer", "lora", "said"),
    [
        (None, None, "--weight-transfer-config"),
        ("strange", None, "the server's weight transfer is strange"),
        ("nccl", None, "pip install vllm"),
        ("gloo", ADAPTERS, "model.lora trains adapters"),
    ],
)
def test_a_transfer_that_cannot_be_had_is_refused_before_anything_is_loaded(
    folder, monkeypatch, transfer, lora, said
):
    monkeypatch.setattr(vllm_checks, "find_spec", lambda name: None)
    with serving(Loopback(folder, Habits(transfer=transfer))) as url:
        engine = VllmServer(url=url, folder="unused", transfer="broadcast")
        with pytest.raises(ValueError, match=said):
            engine.check(Sampling(max_new_tokens=5), lora)
