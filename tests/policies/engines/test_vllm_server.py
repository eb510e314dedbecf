"""A policy whose answers come from a server: what is asked, believed, and handed over."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from loopback import Habits, Loopback, serving
from small_language import NOTHING, questions
from torch.testing import assert_close

from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language import LanguagePolicy, Sampling
from tandem.policies.lora import Lora
from tandem.policies.tiny_lm import tiny_lm

OLD = frozenset({"old_logp"})
ADAPTERS = Lora(r=2, alpha=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Qwen3, as a server and a policy read it."""
    path = tmp_path_factory.mktemp("served")
    for part in tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8):
        part.save_pretrained(path)
    return str(path)


@pytest.fixture
def hosted(folder, tmp_path):
    """(habits, ...) -> a server in those habits, and a policy that it samples for."""

    @contextmanager
    def host(habits=None, *, lora=None, sampling=None, **options):
        state = Loopback(folder, habits or Habits())
        with serving(state) as url:
            quick = {"timeout": 5.0, "patience": 2.0, "concurrency": 4}
            server = VllmServer(url=url, folder=str(tmp_path), **(quick | options))
            own = sampling or Sampling(max_new_tokens=6)
            policy = LanguagePolicy(sampling=replace(own, engine=server), path=folder, lora=lora)
            policy.load(NOTHING)
            yield state, policy

    return host


def sampled(policy, key=5, count=2):
    return policy.sample(questions()[:3], count, key=key, slots=range(3))


def moved(policy, by=0.05):
    """As after an iteration of training."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(by * torch.randn_like(parameter))
    policy.updated()
    policy.ended()


@pytest.mark.parametrize("lora", [None, ADAPTERS])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_server_says_what_the_trainer_says_before_and_after_an_update(
    hosted, lora, temperature
):
    with hosted(lora=lora, sampling=Sampling(max_new_tokens=6, temperature=temperature)) as (
        _,
        policy,
    ):
        for _ in range(2):
            rollout = sampled(policy)
            assert_close(
                policy.evidence(rollout, NOTHING).logp, rollout.behaviour_logp, atol=1e-5, rtol=0
            )
            assert rollout.version_gap is None
            moved(policy)
