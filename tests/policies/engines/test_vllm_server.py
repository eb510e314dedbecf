"""A policy with answers from a server: requests, validation of replies, and weight handover."""

import os
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from loopback import ROWS, Habits, Loopback, serving, slowly
from small_language import NOTHING, questions
from torch.testing import assert_close

from tandem import distributed
from tandem.policies.engines import vllm_server
from tandem.policies.engines.protocol import RolloutEngine
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.records import Endings
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.stop import EngineUnavailable

OLD = frozenset({"old_logp"})
ADAPTERS = Lora(r=2, alpha=4)


@pytest.fixture
def hosted(folder, tmp_path):
    """(habits, ...) -> a server with those habits, and a policy that samples from it."""

    @contextmanager
    def host(habits=None, *, lora=None, sampling=None, **options):
        state = Loopback(folder, habits or Habits())
        with serving(state) as url:
            quick = {"timeout": 10.0, "patience": 20.0, "concurrency": 4}
            server = VllmServer(url=url, folder=str(tmp_path), **(quick | options))
            own = sampling or Sampling(max_new_tokens=6)
            policy = LanguagePolicy(path=folder, lora=lora)
            policy.load(Request(sampling=replace(own, engine=server)))
            yield state, policy

    return host


def sample(policy, key=5, count=2):
    return policy.sample(questions()[:3], count, key=key, slots=range(3))


def move(policy, by=0.05):
    """The policy after an iteration of training."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(by * torch.randn_like(parameter))
    policy.notify("update")
    policy.notify("iteration")


def matches(policy, rollout):
    """Whether the trainer's log-probabilities equal the engine's."""
    again = policy.evidence(rollout, NOTHING).logp
    return (again - rollout.behaviour_logp).abs().max().item() < 1e-5


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_the_server_says_what_the_trainer_says_before_and_after_an_update(hosted, lora, tokens):
    sampling = Sampling(max_new_tokens=6, temperature=0.7)
    with hosted(Habits(tokens=tokens), lora=lora, sampling=sampling) as (state, policy):
        for _ in range(2):
            rollout = sample(policy)
            assert matches(policy, rollout)
            assert rollout.version_gap is None
            move(policy)
        assert not matches(policy, rollout)
        asked = {path for path, payload in state.asked if path in ROWS and payload}
        assert asked == {ROWS[0] if tokens else ROWS[1]}


def answer(policy, count=2):
    policy.ready()
    keys = torch.arange(3 * count).reshape(3, count)
    endings = Endings(tokens=policy.ends, strings=(), decode=policy.chat.decode_all)
    sampling = Sampling(max_new_tokens=6)
    return policy.engine.answer([[5, 6], [7], [8, 9]], keys, sampling=sampling, endings=endings)


def test_both_endpoints_give_the_same_rows(hosted):
    found = []
    for tokens in (True, False):
        with hosted(Habits(tokens=tokens)) as (_, policy):
            found.append(answer(policy))
    for name in ("tokens", "logp", "length", "truncated"):
        assert_close(*(getattr(answers, name) for answers in found), rtol=0, atol=0)


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_every_token_says_which_handover_took_it(hosted, lora):
    with hosted(lora=lora) as (_, policy):
        for number in (1, 2):
            answers = answer(policy)
            steps = torch.arange(answers.tokens.shape[1]) < answers.length[:, None]
            assert torch.equal(answers.version, number * steps.long())
            move(policy)


def test_a_server_that_tells_no_versions_leaves_them_out(hosted):
    with hosted(Habits(tokens=False)) as (_, policy):
        assert answer(policy).version is None


def test_rows_of_other_weights_than_those_that_were_handed_over_are_asked_for_again(hosted):
    with hosted() as (state, policy):
        answer(policy)
        state.version = "of-7"  # another run's
        assert answer(policy).version.max() == 1
        assert len(state.paths("/collective_rpc")) == 2


def test_rows_share_as_many_connections_as_there_are_at_a_time(hosted):
    with hosted() as (state, policy):
        for _ in range(3):
            sample(policy, count=8)
        assert len(state.rows()) == 72
        assert state.connections <= 4  # rollout.engine.concurrency


def test_rows_end_as_those_of_our_own_loop_do(hosted, folder):
    sampling = Sampling(max_new_tokens=6, stop=("ab", "f"))
    with hosted(sampling=sampling) as (_, policy):
        local = LanguagePolicy(path=folder)
        local.load(Request(sampling=sampling))
        for rollout in (sample(policy, count=8), sample(local, count=8)):
            ends = rollout.sample.tokens.gather(
                1, (rollout.sample.prompt_length + rollout.length - 1)[:, None]
            )[:, 0].tolist()
            stopped = [any(stop in text for stop in sampling.stop) for text in rollout.outputs]
            whole = [t in policy.ends or s for t, s in zip(ends, stopped, strict=True)]
            assert rollout.truncated.tolist() == [not w for w in whole]
            assert any(stopped) and rollout.truncated.any()
            assert (rollout.length[rollout.truncated] == 6).all()


def test_a_row_is_a_function_of_its_key_alone(hosted):
    with hosted() as (state, policy):
        four, two = sample(policy, count=4), sample(policy, count=2)
        rows = [0, 1, 4, 5, 8, 9]
        assert [four.outputs[row] for row in rows] == list(two.outputs)
        assert sample(policy, key=6).outputs != two.outputs
        seeds = [(body.get("sampling_params") or body)["seed"] for body in state.rows()]
        assert len(set(seeds[:12])) == 12
        assert min(seeds) >= 0


def test_greedy_answers_are_those_of_our_own_loop(hosted, folder):
    greedy = Sampling(max_new_tokens=6, temperature=0.0)
    with hosted(sampling=greedy) as (_, policy):
        local = LanguagePolicy(path=folder)
        local.load(Request(sampling=greedy))
        ours, theirs = sample(local), sample(policy)
        assert ours.outputs == theirs.outputs
        assert_close(ours.behaviour_logp, theirs.behaviour_logp, atol=1e-5, rtol=0)


def test_what_a_server_reports_is_not_taken_for_the_trainers(hosted):
    with hosted() as (_, policy):
        rollout = sample(policy)
        complete = policy.complete(rollout, OLD)
        assert complete.old_logp is not rollout.behaviour_logp
        assert complete.entropy is None
        assert policy.disagreement < 1e-5


# Weights.


def test_weights_travel_once_for_all_updates_of_an_iteration_and_only_if_somebody_asks(hosted):
    with hosted() as (state, policy):
        assert not state.asked
        for _ in range(3):
            policy.notify("update")
        policy.notify("iteration")
        for _ in range(2):
            sample(policy)
        assert state.paths("/collective_rpc") == ["/collective_rpc"]
        assert state.paths("/reset_prefix_cache") == ["/reset_prefix_cache"]


def test_an_adapter_travels_alone_and_takes_the_place_of_the_one_before(hosted, tmp_path):
    with hosted(lora=ADAPTERS) as (state, policy):
        for _ in range(3):
            sample(policy)
            move(policy)
        assert not state.paths("/collective_rpc")
        (name,) = state.adapters
        assert name == policy.supply.version
        (home,) = tmp_path.iterdir()
        files = {file.name for file in (home / name).iterdir()}
        assert "adapter_model.safetensors" in files and "model.safetensors" not in files
        assert sorted(x.name for x in home.iterdir()) == [f"{name[:-1]}{i}" for i in "23"] + [
            "owner"
        ]


class Mute(RolloutEngine):
    """An engine that must not be called."""

    def sync(self, weights, version):
        raise AssertionError

    answer = sync


class Live:
    """Weights that must not be saved."""

    adapter = is_sharded = False


def test_a_run_is_named_once_its_ranks_know_of_each_other(monkeypatch):
    """Ranks load before the process group exists, and each would choose its own name."""
    named = WeightSync(Mute(), Live())
    monkeypatch.setattr(distributed, "all_gather_object", lambda own: ["of the first rank", *own])
    monkeypatch.setattr(named, "_prepare", lambda behind: None)
    monkeypatch.setattr(named, "_agree", lambda fault: None)
    named.refresh()
    assert named.version == "of the first rank-1"


def test_other_weights_altogether_are_handed_over(hosted):
    with hosted() as (_, policy):
        sample(policy)
        with torch.no_grad():
            other = {name: p + 0.05 for name, p in policy.weights().items()}
        policy.load_weights(other)  # a checkpoint's
        assert matches(policy, sample(policy))


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_a_server_that_was_started_again_is_given_the_weights_again(hosted, lora):
    with hosted(lora=lora) as (state, policy):
        sample(policy)
        move(policy)
        sample(policy)
        state.start()
        assert matches(policy, sample(policy))


HANDED_OVER = ("/collective_rpc", "/v1/load_lora_adapter")


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_a_rank_that_finds_the_weights_there_again_hands_over_nothing(hosted, lora):
    with hosted(lora=lora) as (state, policy):
        sample(policy)
        first, version = policy.supply.engine, policy.supply.version
        second = policy.sampling.engine.host(policy)  # of another rank
        second.follow(policy.files, version)
        assert second.handovers == first.handovers
        state.start()
        for rank in (second, first):
            rank.renew(policy.files, version)
        handovers = [path for path in state.paths() if path in HANDED_OVER]
        assert len(handovers) == 2  # at first, and after the start
        assert matches(policy, sample(policy))


def test_nothing_is_reused_that_older_weights_computed_of_a_prompt(hosted):
    with hosted() as (state, policy):
        state.habits.spoil = lambda path, said: (
            (200, b'{"success": false}') if path == "/reset_prefix_cache" else None
        )
        for _ in range(2):
            sample(policy)
            move(policy)
        salts = [row["cache_salt"] for row in state.rows()]
        assert len(set(salts)) == 2
        assert salts == sorted(salts)


def test_a_server_that_starts_again_and_again_is_left(hosted):
    with hosted(lora=ADAPTERS) as (state, policy):
        state.habits.spoil = lambda path, said: (404, b"{}") if path in ROWS else None
        with pytest.raises(EngineUnavailable, match="lost its weights 3 times in a row"):
            sample(policy)


def test_a_server_that_knows_no_versions_is_trusted_to_keep_its_weights(hosted):
    with hosted(Habits(versions=False)) as (_, policy):
        sample(policy)
        move(policy)
        assert matches(policy, sample(policy))


@pytest.mark.parametrize(("lora", "level"), [(None, 2), (ADAPTERS, 1)])
def test_the_server_sleeps_while_the_policy_is_trained(hosted, lora, level):
    with hosted(lora=lora, sleeps=True) as (state, policy):
        for _ in range(2):
            rollout = sample(policy)
            assert matches(policy, rollout)
            policy.complete(rollout, OLD)
            assert state.asleep == {"weights", "kv_cache"}
            move(policy)
        order = [path.partition("/")[2] for path in state.paths() if "wake" in path or "sl" in path]
        sleep = f"sleep?level={level}"
        woken = ["wake_up?tags=weights", "wake_up?tags=kv_cache"]
        assert order == ["is_sleeping", sleep, *woken, sleep]


def test_a_server_that_was_left_asleep_is_woken(hosted):
    with hosted() as (state, policy):
        state.asleep = {"weights", "kv_cache"}
        assert matches(policy, sample(policy))


# Faults.


def spoiling(times, *spoilt):
    """A `spoil` that replaces the first completions by these replies: (status, body)."""
    left = iter(spoilt * times)
    return lambda path, said: next(left, None) if path in ROWS else None


HALF = (200, b'{"model": "base", "choi')
FAULTS = {
    "500": (500, b"boom"),
    "half a JSON": HALF,
    "another prompt": (
        200,
        b'{"model": "base", "prompt_token_ids": [1], "choices": [{"prompt_token_ids": [1]}]}',
    ),
    "1 GB": (200, b"x" * (1 << 20)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_went_wrong_is_asked_for_again_and_comes_out_the_same(hosted, fault):
    with hosted(max_reply_bytes=1 << 16) as (state, policy):
        want = sample(policy)
        state.habits.spoil = spoiling(1, FAULTS[fault])
        before = len(state.rows())
        got = sample(policy)
        assert len(state.rows()) == before + 7  # six rows, one of them twice
        assert got.outputs == want.outputs


SAID = {
    "500": r"/v1/generate: .*500.*boom",
    "half a JSON": "the reply of 23 bytes is not JSON",
    "another prompt": "the reply is to another prompt",
    "1 GB": "exceeds 65536",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_stays_wrong_ends_the_run_with_one_line(hosted, fault):
    with hosted(max_reply_bytes=1 << 16, patience=0.4, concurrency=1) as (state, policy):
        state.habits.spoil = spoiling(1000, FAULTS[fault])
        with pytest.raises(EngineUnavailable, match=SAID[fault]) as away:
            sample(policy)
        assert "\n" not in str(away.value)


def test_a_slow_server_is_left_after_its_time(hosted):
    with hosted(timeout=0.2, patience=0.4, concurrency=1) as (state, policy):
        state.habits.spoil = slowly(0.6)
        with pytest.raises(EngineUnavailable, match="engine gave no answer"):
            sample(policy)


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_a_server_that_a_killed_run_left_paused_is_resumed(hosted, lora):
    with hosted(lora=lora, patience=5.0) as (state, policy):
        state.paused = True
        sample(policy)
        sample(policy, key=6)
        move(policy)
        sample(policy)
        assert len(state.paths("/resume")) == 1


@pytest.mark.parametrize("dev_mode", [True, False])
def test_one_that_cannot_pause_is_none_the_worse(hosted, dev_mode):
    with hosted(Habits(dev_mode=dev_mode), lora=ADAPTERS) as (_, policy):
        sample(policy)


def test_a_server_that_ends_in_a_handover_with_rows_in_flight_is_waited_for_once(
    hosted, monkeypatch
):
    monkeypatch.setattr(vllm_server, "SOON", 0.5)
    sampling = Sampling(max_new_tokens=6, staleness=1, handover="in_flight")
    with hosted(sampling=sampling, timeout=1.0, patience=3.0) as (state, policy):
        policy.supply.publish()
        policy.supply.journey.end()
        gone = ("/collective_rpc", "/resume")
        state.habits.spoil = lambda path, _: time.sleep(2) if path in gone else None
        state.asked.clear()
        policy.supply.publish()
        with pytest.raises(EngineUnavailable):
            policy.supply.journey.end()
        assert len(state.paths("/collective_rpc")) > 1
        assert len(state.paths("/resume")) == 1


# Before anything is loaded.


def server(url, **options):
    return VllmServer(url=url, folder="engine", **options)


def check(state, *, lora=None, sampling=None, **options):
    with serving(state) as url:
        server(url, **options).check(sampling or Sampling(max_new_tokens=6), lora)


def refusal_of(message, state, **options):
    with pytest.raises(ValueError, match=message):
        check(state, **options)


HERE, ELSEWHERE = "http://127.0.0.1:1", "http://elsewhere:1"


@pytest.mark.parametrize(
    ("urls", "asked", "memory"),
    [([HERE], True, True), ([HERE], False, False), ([HERE, ELSEWHERE], True, False)],
)
def test_weights_travel_in_memory_if_it_is_asked_for_and_all_servers_are_here(
    urls, asked, memory, tmp_path, monkeypatch
):
    monkeypatch.setattr(vllm_server, "MEMORY", tmp_path)
    store = VllmServer(url=urls, folder="disk", in_memory=asked)._store(urls)
    assert (store.memory is not None) == memory
    assert str(store.folder) == "disk"


@pytest.mark.parametrize("found", ["none", "own", "readable", "link", "file", "another's"])
def test_weights_travel_in_memory_through_a_folder_of_the_user_alone(
    found, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(vllm_server, "MEMORY", tmp_path)
    place = tmp_path / f"tandem-{os.getuid()}"
    if found == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "other")
    elif found == "file":
        place.touch(mode=0o600)
    elif found != "none":
        place.mkdir(mode=0o755 if found == "readable" else 0o700)
    if found == "another's":
        other = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: other)
        place.rename(tmp_path / f"tandem-{os.getuid()}")
    store = VllmServer(url=[HERE], folder="disk", in_memory=True)._store([HERE])
    assert (store.memory is not None) == (found in ("none", "own"))
    assert ("is not private to you" in caplog.text) == (store.memory is None)
    if found == "none":
        assert place.stat().st_mode & 0o777 == 0o700


def test_a_server_that_can_do_what_is_wanted_is_taken(folder, monkeypatch):
    monkeypatch.setenv("ENGINE_KEY", "secret")
    check(Loopback(folder, Habits(api_key="secret")), api_key_env="ENGINE_KEY", sleeps=True)
    check(Loopback(folder, Habits(dev_mode=False)), lora=ADAPTERS)


def test_a_server_that_cannot_do_what_is_wanted_is_refused_by_the_flag_to_start_it_with(folder):
    plain = Loopback(folder)
    refusal_of("--logprobs-mode processed", Loopback(folder, Habits(mode="raw_logprobs")))
    refusal_of("VLLM_SERVER_DEV_MODE=1", Loopback(folder, Habits(dev_mode=False)))
    refusal_of("--max-lora-rank 32", plain, lora=Lora(r=32, alpha=4))
    refusal_of("--max-model-len 200", plain, sampling=Sampling(max_new_tokens=199))
    refusal_of("rollout.engine.model=other: .* it has base", plain, model="other")
    refusal_of("rollout.engine.api_key_env", Loopback(folder, Habits(api_key="secret")))


def test_a_server_with_less_room_than_an_episode_may_need_is_named_with_its_flag(folder, caplog):
    with serving(Loopback(folder)) as url:
        option = VllmServer(url=url, folder="unused")
        option.check_episodes(128)
        assert not caplog.text
        option.check_episodes(129)
    assert "room for 128" in caplog.text and "--max-model-len 129" in caplog.text


def test_one_of_several_servers_must_tell_the_version_of_its_weights(folder):
    silent = Loopback(folder, Habits(versions=False))
    check(silent)
    with serving(Loopback(folder)) as told, serving(silent) as url:
        both = server([told, url])
        with pytest.raises(ValueError, match=f"report the version of its weights, and {url} does"):
            both.check(Sampling(max_new_tokens=6), None)
        both.check(Sampling(max_new_tokens=6), ADAPTERS)  # these have it as their name


@pytest.mark.parametrize("value", [None, " "])
def test_a_key_that_is_not_there_is_missed_before_the_server_is_asked(monkeypatch, value):
    monkeypatch.delenv("NOPE_X", raising=False)
    if value is not None:
        monkeypatch.setenv("NOPE_X", value)
    with pytest.raises(
        ValueError,
        match=r"^rollout\.engine\.api_key_env=NOPE_X: this environment variable is empty",
    ):
        server("http://127.0.0.1:9", api_key_env="NOPE_X").check(Sampling(max_new_tokens=6), None)


def test_a_server_that_is_slow_to_tell_of_itself_once_is_waited_for(folder, monkeypatch):
    monkeypatch.setattr(vllm_server, "SOON", 0.5)
    state = Loopback(folder)

    def slow(path, _):
        if path.startswith("/server_info"):
            time.sleep(1.0)

    state.habits.spoil = slow
    check(state)


def test_a_server_that_is_too_slow_is_refused_by_a_key_that_there_is(folder, monkeypatch):
    monkeypatch.setattr(vllm_server, "FIRST_INFO", 0.5)
    state = Loopback(folder)
    state.habits.spoil = lambda path, _: time.sleep(path.startswith("/server_info"))
    refusal_of(r"no complete reply within 0\.5 s; see rollout\.engine\.patience$", state)


def test_a_server_that_is_not_there_is_one_line_that_names_the_flag(free_port):
    with pytest.raises(ValueError, match=r"rollout\.engine\.url") as error:
        server(f"http://127.0.0.1:{free_port}").check(Sampling(max_new_tokens=6), None)
    assert "\n" not in str(error.value)
