"""`rollout=sglang_server` against a server written from SGLang's source; SGLang was not run."""

import json
from dataclasses import replace

import pytest
import torch
from loopback import serving
from sglang_loopback import SglangHandler, SglangLoopback
from small_language import NOTHING, questions

from tandem.policies.engines.sglang_server import SglangServer, check_server
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.stop import EngineUnavailable

LORA = Lora(r=2, alpha=4, target_modules="all-linear")
KINDS = pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])


@pytest.fixture
def server(folder):
    state = SglangLoopback(folder)
    with serving(state, handler=SglangHandler) as url:
        yield state, url


def policy_of(folder, url, store, *, lora=None, **engine):
    option = SglangServer(
        url=url, folder=str(store), in_memory=False, patience=3, timeout=3, **engine
    )
    sampling = Sampling(max_new_tokens=6, max_prompt_tokens=20, engine=option)
    option.check(sampling, lora)
    policy = LanguagePolicy(path=folder, lora=lora)
    policy.load(Request(sampling=sampling, needs=NOTHING))
    return policy


def sample(policy, **sampling):
    words = questions(("dbca", "fa", "ccab"))
    changed = replace(policy.sampling, **sampling)
    return policy.sample(words, 2, key=1, slots=range(3), sampling=changed)


def gap(policy, rows):
    """The largest difference from the training forward pass, nats."""
    with torch.no_grad():
        logp = policy.evidence(rows, NOTHING).logp
    return float((logp - rows.behaviour_logp)[rows.mask].abs().max())


def move(policy):
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.add_(0.05 * torch.randn_like(weight))
    policy.notify("update")


@KINDS
def test_its_rows_follow_the_weights_of_the_trainer(server, folder, tmp_path, lora):
    state, url = server
    policy = policy_of(folder, url, tmp_path, lora=lora)
    for _ in range(3):
        rows = sample(policy)
        assert gap(policy, rows) < 1e-4
        move(policy)
    seeds = [payload["sampling_params"]["sampling_seed"] for path, payload in state.asked
             if path == "/generate"]  # fmt: skip
    assert len(set(seeds)) == len(seeds) / 3 == 6
    handed = "/load_lora_adapter" if lora else "/update_weights_from_disk"
    assert len(state.paths(handed)) == 3
    assert len(state.adapters) == (lora is not None)


@KINDS
def test_one_that_was_started_again_is_given_the_weights_again(server, folder, tmp_path, lora):
    state, url = server
    policy = policy_of(folder, url, tmp_path, lora=lora)
    sample(policy)
    move(policy)
    want = sample(policy)
    state.start()
    got = sample(policy)
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    assert gap(policy, got) < 1e-4


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"top_k": 3}, {"stop": ("a", "b")}], ids=str
)
def test_every_setting_reaches_it(server, folder, tmp_path, sampling):
    state, url = server
    policy = policy_of(folder, url, tmp_path)
    rows = sample(policy, **sampling)
    payload = next(payload for path, payload in state.asked if path == "/generate")
    said = payload["sampling_params"]
    for name, value in sampling.items():
        assert said[name] == (list(value) if name == "stop" else value)
    if "top_k" not in sampling:
        assert gap(policy, rows) < 1e-4


def test_its_memory_goes_and_comes_by_tags(server, folder, tmp_path):
    state, url = server
    for lora, tags in ((None, ["weights", "kv_cache"]), (LORA, ["kv_cache"])):
        policy = policy_of(folder, url, tmp_path / str(bool(lora)), lora=lora)
        policy.supply.sleeps = True
        sample(policy)
        policy.supply.rest()
        assert state.asleep == set(tags)
        assert gap(policy, sample(policy)) < 1e-4
        assert state.asleep == set()


def test_a_reply_of_other_tokens_is_no_row(server, folder, tmp_path):
    state, url = server
    policy = policy_of(folder, url, tmp_path)

    def spoil(path, said):
        if path == "/generate":
            said["meta_info"]["output_token_logprobs"][0][1] += 1
            return 200, json.dumps(said).encode()
        return None

    state.habits.spoil = spoil
    with pytest.raises(EngineUnavailable, match="not those of its tokens"):
        sample(policy)


def test_a_server_without_the_option_is_refused_with_its_flag():
    with pytest.raises(ValueError, match="start it with --enable-memory-saver"):
        check_server({"enable_memory_saver": False}, None, sleeps=True)
    with pytest.raises(ValueError, match="start it with --enable-lora --max-lora-rank 2"):
        check_server({"enable_lora": False}, LORA, sleeps=False)
    check_server({}, LORA, sleeps=True)


def test_a_transfer_of_vllm_alone_is_refused(server, folder, tmp_path):
    _, url = server
    with pytest.raises(ValueError, match=r"set rollout\.engine\.transfer=files"):
        policy_of(folder, url, tmp_path, transfer="broadcast")
