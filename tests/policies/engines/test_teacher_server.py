"""A teacher on a server: queried once about the student's ids, and trusted only about those."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from loopback import Habits, Loopback, serving
from small_language import byte_tokenizer, questions
from torch.testing import assert_close

from tandem.losses.divergence import forward_kl, jsd, reverse_kl
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.teacher_server import TeacherServer, card_of, likely_tokens
from tandem.policies.language.teachers import TokenTeachers
from tandem.policies.request import Request
from tandem.remote import Reply
from tandem.stop import EngineUnavailable

SAMPLED, STATES = frozenset({"teacher_logp", "old_logp"}), frozenset({"divergence"})
QUICK = TeacherServer(timeout=10.0, patience=1.0, concurrency=4)
ROW = "/v1/completions"


@pytest.fixture
def taught(folder):
    """(needs, ...) -> a server, and a student with different weights."""

    @contextmanager
    def teach(needs, *, habits=None, sampling=None, **divergence):
        state = Loopback(folder, habits or Habits())
        with serving(state) as url:
            yield state, student(folder, url, needs, sampling=sampling, **divergence)

    return teach


def student(folder, teacher, needs, *, sampling=None, **divergence):
    policy = LanguagePolicy(path=folder)
    teachers = TokenTeachers(folders={"others": teacher}, server=QUICK, **divergence)
    request = Request(sampling=sampling or Sampling(max_new_tokens=6), needs=needs)
    policy.load(replace(request, teachers=teachers))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


def sample(policy):
    return policy.sample(questions()[:3], 2, key=5, slots=range(3))


def test_it_says_of_sampled_tokens_what_the_same_weights_here_say(taught, folder):
    with taught(SAMPLED) as (state, policy):
        rollout = sample(policy)
        got = policy.complete(rollout, SAMPLED).teacher_logp
    want = student(folder, folder, SAMPLED).complete(rollout, SAMPLED).teacher_logp
    assert_close(got, want, atol=1e-5, rtol=0)
    assert (got - rollout.behaviour_logp).abs().max() > 0.01
    ends = (rollout.sample.prompt_length + rollout.length).tolist()
    rows = [row[:end] for row, end in zip(rollout.sample.tokens.tolist(), ends, strict=True)]
    asked = [payload["prompt"] for path, payload in state.asked if path == ROW]
    assert sorted(asked) == sorted(rows), "the very ids, each row once"


@pytest.mark.parametrize("of", [forward_kl, jsd, reverse_kl])
@pytest.mark.parametrize("tail", [True, False])
def test_its_likeliest_tokens_are_compared_as_those_of_the_same_weights_here(
    taught, folder, of, tail
):
    chosen = {"divergence": of, "top_k": 5, "tail": tail, "support": "teacher"}
    with taught(STATES, **chosen) as (state, policy):
        rollout = sample(policy)
        rows = policy.complete(rollout, STATES)
        asked = len(state.asked)
        got = policy.evidence(rows, STATES).divergence
        policy.evidence(rows, STATES)
        assert len(state.asked) == asked, "it is asked before the first update, and once"
    here = student(folder, folder, STATES, **chosen)
    want = here.evidence(rollout, STATES).divergence
    assert_close(got, want, atol=1e-5, rtol=1e-4)
    assert want.max() > 1e-3
    pairs = zip(
        torch.autograd.grad(got.sum(), list(policy.trainable().values())),
        torch.autograd.grad(want.sum(), list(here.trainable().values())),
        strict=True,
    )
    for one, other in pairs:
        assert_close(one, other, atol=1e-4, rtol=1e-3)


def other_ids(path, said):
    if path == ROW:
        said["choices"][0]["prompt_token_ids"][-1] += 1
        return 200, json.dumps(said).encode()


def logits(path, said):
    if path == ROW:
        for place in said["choices"][0]["prompt_logprobs"][1:]:
            for one in place.values():
                one["logprob"] += 20.0
        return 200, json.dumps(said).encode()


def without_the_token(path, said):
    if path == ROW:
        for place, token in zip(
            said["choices"][0]["prompt_logprobs"], said["choices"][0]["prompt_token_ids"],
            strict=True,
        ):  # fmt: skip
            if place is not None:
                place.pop(token)
        return 200, json.dumps(said).encode()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (other_ids, "the reply is about different token ids"),
        (logits, "is not a log-probability"),
        (without_the_token, "the reply has no value of token"),
    ],
)
def test_a_reply_about_other_ids_or_without_numbers_is_none(taught, spoil, why):
    with taught(SAMPLED) as (state, policy):
        rollout = sample(policy)
        state.habits.spoil = spoil
        told = rf"the teacher gave no answer: .*{why}.*; see algorithm\.teachers\.folders$"
        with pytest.raises(EngineUnavailable, match=told):
            policy.complete(rollout, SAMPLED)


def test_a_server_that_is_gone_ends_the_run_before_anything_is_trained(taught):
    with taught(STATES, divergence=forward_kl, top_k=5) as (state, policy):
        rollout = sample(policy)
        state.habits.spoil = lambda path, said: (503, b"")
        with pytest.raises(EngineUnavailable, match="the teacher gave no answer"):
            policy.complete(rollout, STATES)


def test_a_server_of_too_few_log_probabilities_is_told_by_its_flag(taught):
    habits = Habits(max_logprobs=3)
    with taught(STATES, divergence=forward_kl, top_k=5, habits=habits) as (_, policy):
        rollout = sample(policy)
        with pytest.raises(EngineUnavailable, match="with --max-logprobs 5 or more"):
            policy.complete(rollout, STATES)


def test_another_refusal_of_a_server_is_not_blamed_on_that_flag(taught):
    with taught(STATES, divergence=forward_kl, top_k=5) as (state, policy):
        rollout = sample(policy)
        state.habits.spoil = lambda path, said: (404, b"the model does not exist")
        with pytest.raises(EngineUnavailable, match=r"does not exist'$"):
            policy.complete(rollout, STATES)


def test_a_row_leaves_room_for_the_token_that_the_teacher_is_asked_to_write():
    """vLLM refuses a prompt as long as its context."""
    card = {"id": "a", "max_model_len": 16}
    assert card_of({"data": [card]}, None) == ("a", 15)


def parse_last(place, top_k):
    """The parsed reply for the last of two tokens, 4 and 7."""
    choice = {"prompt_token_ids": [4, 7], "prompt_logprobs": [None, place]}
    reply = Reply(body=json.dumps({"choices": [choice]}).encode(), kind="application/json")
    return likely_tokens(reply, ids=[4, 7], columns=[1], top_k=top_k)


def test_likeliest_tokens_are_told_by_their_log_probabilities_whatever_ranks_say():
    """Tokens 9 and 8 tie: both rank second if only likelier ones count, and third if equal ones do
    too."""
    logp = {"7": -5.0, "9": -1.0, "3": -0.5, "8": -1.0}
    for ranks in ((4, 2, 1, 2), (4, 3, 1, 3), (None,) * 4):
        place = {
            one: {"logprob": x, "rank": rank}
            for (one, x), rank in zip(logp.items(), ranks, strict=True)
        }
        assert parse_last(place, 2) == [(-5.0, [(3, -0.5), (8, -1.0)])]
    with pytest.raises(ValueError, match="the reply has 4 of 5 most likely tokens"):
        parse_last(place, 5)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ({"7": (-5.0, None), "3": (-0.5, None)}, False),  # one token, and the sampled one
        ({"7": (-5.0, 9), "3": (-0.5, None)}, False),
        ({"7": (-5.0, 2), "3": (-0.5, 1)}, True),
        ({"7": (-0.5, None), "3": (-5.0, None)}, True),
        ({"7": (-5.0, None), "3": (-0.5, None), "8": (-1.0, None)}, True),
    ],
)
def test_a_server_that_counts_the_written_token_among_the_likeliest_is_refused(place, told):
    place = {one: {"logprob": logp, "rank": rank} for one, (logp, rank) in place.items()}
    if told:
        assert len(parse_last(place, 2)[0][1]) == 2
        return
    with pytest.raises(ValueError, match=r"^no position has 2 most likely .* may have sent 1$"):
        parse_last(place, 2)


@pytest.mark.parametrize(
    "choices",
    [
        None,
        {},
        [],
        ["a"],
        [{"prompt_token_ids": [4], "prompt_logprobs": None}],
        [{"prompt_token_ids": [4], "prompt_logprobs": [{"4": None}]}],
        [{"prompt_token_ids": [4], "prompt_logprobs": [{"4": -1.0}]}],
        [{"prompt_token_ids": [4], "prompt_logprobs": [{"4": {"logprob": None}}]}],
    ],
)
def test_a_reply_of_another_form_is_asked_for_again_and_ends_nothing(choices):
    """An AttributeError would end the run; a ValueError marks a bad reply."""
    reply = Reply(body=json.dumps({"choices": choices}).encode(), kind="application/json")
    with pytest.raises(ValueError, match="the reply has no "):
        likely_tokens(reply, ids=[4], columns=[0], top_k=0)


def test_the_token_that_was_written_needs_no_rank():
    assert parse_last({"7": {"logprob": -5.0}}, 0) == [(-5.0, [])]


def test_a_teacher_of_other_tokens_or_at_another_temperature_is_refused_at_load(folder):
    state = Loopback(folder)
    with serving(state) as url:
        warm = Sampling(max_new_tokens=6, temperature=0.9)
        with pytest.raises(ValueError, match=r"rollout.temperature=0.9: a teacher on a server"):
            student(folder, url, SAMPLED, sampling=warm)
        state.tokenizer = byte_tokenizer()
        with pytest.raises(ValueError, match=r"its tokenizer encodes .* but the policy's as"):
            student(folder, url, SAMPLED)
    with pytest.raises(ValueError, match=r"others=http.*: the teacher does not answer"):
        student(folder, url, SAMPLED)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"divergence": forward_kl}, "top_k=null: a server reports only its most likely tokens"),
        ({"divergence": reverse_kl, "top_k": 5}, "set algorithm.teachers.support=teacher"),
    ],
)
def test_a_divergence_over_what_no_server_tells_is_refused(options, why):
    with pytest.raises(ValueError, match=why):
        TokenTeachers(folders={"others": "http://127.0.0.1:1"}, **options)
