"""Validation of replies: only an answer to the exact request is accepted."""

import copy

import pytest
import torch

from tandem.policies.engines.replies import Completion, Generation
from tandem.policies.engines.reply_rows import Row, Span, stack_rows
from tandem.policies.language.records import Sampling

END = 1
ASKED = {
    "prompt": [5, 6],
    "seed": 2**63 - 1,
    "model": "base",
    "sampling": Sampling(max_new_tokens=3, temperature=0.7, top_p=0.9),
    "ends": (END,),
    "vocabulary": 10,
}
COMPLETION, GENERATION = Completion(**ASKED), Generation(**ASKED)
REPLY = {
    "model": "base",
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [7, END],
            "prompt_token_ids": [5, 6],
            "logprobs": {"tokens": ["token_id:7", "token_id:1"], "token_logprobs": [-0.5, 0.0]},
        }
    ],
}

GENERATED = {
    "model": "base",
    "prompt_token_ids": [5, 6],
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [7, END],
            "weight_versions": [
                {"version": "a-1", "start": 0, "end": 1},
                {"version": "a-2", "start": 1, "end": 2},
            ],
            "logprobs": {
                "content": [{"token_id": 7, "logprob": -0.5}, {"token_id": END, "logprob": 0.0}]
            },
        }
    ],
}


def spoilt(path, value, reply=REPLY):
    reply = copy.deepcopy(reply)
    *way, last = path
    part = reply
    for name in way:
        part = part[name]
    part[last] = value
    return reply


CHOICE, LOGP = ("choices", 0), ("choices", 0, "logprobs", "token_logprobs")
FAULTS = {
    "the reply has no choices": spoilt(("choices",), None),
    "2 choices in a reply": spoilt(("choices",), REPLY["choices"] * 2),
    "from model other, not from base": spoilt(("model",), "other"),
    "another prompt": spoilt((*CHOICE, "prompt_token_ids"), [5, 7]),
    "the reply has no token_ids": spoilt((*CHOICE, "token_ids"), None),
    "the answer has 0 tokens": spoilt((*CHOICE, "token_ids"), []),
    "the answer has 4 tokens": spoilt((*CHOICE, "token_ids"), [7, 7, 7, END]),
    "10 is not a token id": spoilt((*CHOICE, "token_ids"), [10, END]),
    "-1 is not a token id": spoilt((*CHOICE, "token_ids"), [-1, END]),
    "True is not a token id": spoilt((*CHOICE, "token_ids"), [True, END]),
    "continues after an end": spoilt((*CHOICE, "token_ids"), [END, 7]),
    "ends with token 7, which is not an end": {
        **REPLY,
        "choices": [
            REPLY["choices"][0]
            | {"token_ids": [END + 6], "logprobs": {"tokens": ["token_id:7"],
                                                    "token_logprobs": [-1.0]}}
        ],
    },
    "not finished: abort": spoilt((*CHOICE, "finish_reason"), "abort"),
    "--max-model-len is too small": spoilt((*CHOICE, "finish_reason"), "length"),
    "the reply has no logprobs": spoilt((*CHOICE, "logprobs"), None),
    "1 log-probabilities for 2 tokens": spoilt(LOGP, [-0.5]),
    "None is not a log-probability": spoilt(LOGP, [None, -0.5]),
    "nan is not a log-probability": spoilt(LOGP, [float("nan"), -0.5]),
    "0.5 is not the log-probability of a sampled token": spoilt(LOGP, [-0.5, 0.5]),
    "-9999.0 is not the log-probability of a sampled token": spoilt(LOGP, [-0.5, -9999.0]),
    "not those of its": spoilt((*CHOICE, "logprobs", "tokens"), ["token_id:7", "token_id:2"]),
}  # fmt: skip


def test_an_answer_is_its_tokens_with_the_end_their_log_probabilities_and_whether_it_was_cut():
    assert COMPLETION.row(REPLY) == Row([7, END], [-0.5, 0.0], False)
    cut = spoilt((*CHOICE, "finish_reason"), "length")
    tokens = {"tokens": [f"token_id:{t}" for t in (7, 8, 9)], "token_logprobs": [-1, -1, -1]}
    cut["choices"][0] |= {"token_ids": [7, 8, 9], "logprobs": tokens}
    assert COMPLETION.row(cut) == Row([7, 8, 9], [-1.0, -1.0, -1.0], True)


@pytest.mark.parametrize("said", FAULTS)
def test_what_is_no_answer_is_refused_with_what_came(said):
    with pytest.raises(ValueError, match=said):
        COMPLETION.row(FAULTS[said])


CONTENT, SPANS = (*CHOICE, "logprobs", "content"), (*CHOICE, "weight_versions")
OF_TOKENS = {
    "another prompt": (("prompt_token_ids",), [5, 7]),
    "the reply has no prompt_token_ids": (("prompt_token_ids",), None),
    "the reply has no logprobs": ((*CHOICE, "logprobs"), None),
    "the reply has no content": (CONTENT, None),
    "1 log-probabilities for 2 tokens": (CONTENT, [{"token_id": 7, "logprob": -0.5}]),
    "the reply has no logprob": ((*CONTENT, 0, "logprob"), None),
    "-9999.0 is not the log-probability of a sampled token": ((*CONTENT, 0, "logprob"), -9999.0),
    "not those of its tokens": ((*CONTENT, 0, "token_id"), 8),
    "do not cover all its tokens": ((*SPANS, 1, "end"), 3),
    "the version spans do not cover": ((*SPANS, 1, "start"), 0),
    "the reply has no version": ((*SPANS, 0, "version"), None),
}


@pytest.mark.parametrize("said", OF_TOKENS)
def test_what_is_no_answer_in_tokens_is_refused_with_what_came(said):
    path, value = OF_TOKENS[said]
    with pytest.raises(ValueError, match=said):
        GENERATION.row(spoilt(path, value, GENERATED))


def test_an_answer_in_tokens_says_which_weights_took_each():
    spans = [Span("a-1", 0, 1), Span("a-2", 1, 2)]
    assert GENERATION.row(GENERATED) == Row([7, END], [-0.5, 0.0], False, spans)
    untold = spoilt(SPANS, None, GENERATED)
    assert GENERATION.row(untold) == Row([7, END], [-0.5, 0.0], False, [])


def test_rows_carry_the_number_of_the_handover_of_each_token_where_all_say_it():
    long = Row([7, 8, 9], [-1.0] * 3, True, [Span("0a1b-3", 0, 2), Span("0a1b-4", 2, 3)])
    short = Row([END], [-1.0], False, [Span("0a1b-12", 0, 1)])
    answers = stack_rows([long, short], torch.device("cpu"))
    assert answers.version.tolist() == [[3, 3, 4], [12, 0, 0]]
    silent = short._replace(spans=())
    assert stack_rows([long, silent], torch.device("cpu")).version is None


@pytest.mark.parametrize("question", [COMPLETION, GENERATION])
@pytest.mark.parametrize("reply", [None, [], "ok", 3, {}, {"choices": 1}])
def test_what_is_no_reply_to_a_question_is_refused(question, reply):
    with pytest.raises(ValueError, match="the reply has no choices"):
        question.row(reply)


@pytest.mark.parametrize("question", [COMPLETION, GENERATION])
def test_every_number_is_asked_for_so_that_a_server_fills_in_none_of_its_own(question):
    payload = question.payload()
    asked = payload | payload.get("sampling_params", {})
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, 0)
    assert (asked["min_p"], asked["repetition_penalty"]) == (0.0, 1.0)
    assert (asked["seed"], asked["n"], asked["logprobs"]) == (2**63 - 1, 1, 0)
    assert asked["stop_token_ids"] == [END]
    assert asked.get("prompt", asked.get("token_ids")) == [5, 6]
