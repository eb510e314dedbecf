"""Weights sharded over two ranks reach a server whole, bit for bit."""

from functools import partial

import pytest
import torch
from loopback import Loopback, serving
from small_language import questions
from two_ranks import on_two_ranks

from tandem import distributed
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.request import Request

pytestmark = pytest.mark.system
ADAPTERS = Lora(r=2, alpha=4)
CASES = {"whole": (None, "in_flight"), "adapter": (ADAPTERS, "pinned")}


def move(policy):
    """Change every weight equally on both ranks, whatever its shard."""
    with torch.no_grad():
        for place, parameter in enumerate(policy.trainable().values()):
            parameter.mul_(1.1 + 0.01 * place).add_(0.01)
    policy.notify("update")
    policy.notify("iteration")


def gap(policy, rank, key):
    """The difference between engine and trainer; ranks have different numbers of rows."""
    mine = questions()[: 2 - rank]
    rollout = policy.sample(mine, 2, key=key, slots=range(len(mine)))
    logp = policy.complete(rollout, frozenset({"old_logp"})).old_logp
    return float((logp - rollout.behaviour_logp).abs().max())


def host(folder, place, url, lora, handover):
    """(differences of engine and trainer, the trained weights, gathered)"""
    from torch.distributed.device_mesh import init_device_mesh

    server = VllmServer(url=url, folder=place, timeout=30.0, patience=60.0, concurrency=4)
    policy = LanguagePolicy(path=folder, lora=lora, token_budget=12)  # ranks make different parts
    policy.load(
        Request(sampling=Sampling(max_new_tokens=5, engine=server, handover=handover))
    )  # fmt: skip
    policy.shard(init_device_mesh("cpu", (2,)))
    rank = torch.distributed.get_rank()
    gaps = [gap(policy, rank, 1)]
    move(policy)
    gaps.append(gap(policy, rank, 2))
    move(policy)
    policy.supply.publish()  # and from a thread
    policy.supply.journey.end()
    gaps.append(gap(policy, rank, 3))
    assert all(distributed.is_sharded(p) for p in policy.trainable().values())
    whole = {name: distributed.full_tensor(p) for name, p in policy.trainable().items()}
    return gaps, {name: p.detach().clone() for name, p in whole.items()}


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    """name -> (the server afterwards, (differences, weights) of each rank)"""
    states = {name: Loopback(folder) for name in CASES}
    place = tmp_path_factory.mktemp("handovers")
    servings = [serving(state) for state in states.values()]
    jobs = {}
    for name, entered in zip(CASES, servings, strict=True):
        jobs[name] = partial(host, folder, str(place / name), entered.__enter__(), *CASES[name])
    try:
        said = on_two_ranks(jobs)
    finally:
        for entered in servings:
            entered.__exit__(None, None, None)
    return {name: (states[name], [said[rank, name] for rank in (0, 1)]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_server_says_what_ranks_with_parts_of_the_weights_say(found, name):
    _, ranks = found[name]
    for gaps, _ in ranks:
        assert len(gaps) == 3
        assert max(gaps) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_the_served_weights_are_the_full_tensors_bit_for_bit(found, name):
    state, ranks = found[name]
    served = dict(state.model.named_parameters())
    (version,) = state.adapters or ["default"]
    for _, whole in ranks:
        assert whole
        for key, tensor in whole.items():
            assert torch.equal(served[key.replace("default", version)], tensor)


def test_each_handover_is_made_once_for_both_ranks(found):
    for name, path in (("whole", "/collective_rpc"), ("adapter", "/v1/load_lora_adapter")):
        assert len(found[name][0].paths(path)) == 3
