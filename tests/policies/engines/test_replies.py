"""What of a completion is believed: nothing that is not an answer to the very question."""

import copy

import pytest

from tandem.policies.engines.replies import Question, Row
from tandem.policies.language.records import Sampling

END = 1
QUESTION = Question(
    prompt=[5, 6],
    seed=2**63 - 1,
    model="base",
    sampling=Sampling(max_new_tokens=3, temperature=0.7, top_p=0.9),
    ends=(END,),
    vocabulary=10,
)
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


def spoilt(path, value):
    reply = copy.deepcopy(REPLY)
    *way, last = path
    part = reply
    for name in way:
        part = part[name]
    part[last] = value
    return reply


CHOICE, LOGP = ("choices", 0), ("choices", 0, "logprobs", "token_logprobs")
FAULTS = {
    "no choices came": spoilt(("choices",), None),
    "2 choices came": spoilt(("choices",), REPLY["choices"] * 2),
    "one of model other": spoilt(("model",), "other"),
    "another prompt": spoilt((*CHOICE, "prompt_token_ids"), [5, 7]),
    "no token_ids came": spoilt((*CHOICE, "token_ids"), None),
    "an answer of 0 tokens": spoilt((*CHOICE, "token_ids"), []),
    "an answer of 4 tokens": spoilt((*CHOICE, "token_ids"), [7, 7, 7, END]),
    "10 is no token id": spoilt((*CHOICE, "token_ids"), [10, END]),
    "-1 is no token id": spoilt((*CHOICE, "token_ids"), [-1, END]),
    "True is no token id": spoilt((*CHOICE, "token_ids"), [True, END]),
    "goes on behind an end": spoilt((*CHOICE, "token_ids"), [END, 7]),
    "ends with token 7, which is no end": {
        **REPLY,
        "choices": [
            REPLY["choices"][0]
            | {"token_ids": [END + 6], "logprobs": {"tokens": ["token_id:7"],
                                                    "token_logprobs": [-1.0]}}
        ],
    },
    "not finished: abort": spoilt((*CHOICE, "finish_reason"), "abort"),
    "--max-model-len is too small": spoilt((*CHOICE, "finish_reason"), "length"),
    "no logprobs came": spoilt((*CHOICE, "logprobs"), None),
    "1 log-probabilities came for 2 tokens": spoilt(LOGP, [-0.5]),
    "None is no log-probability": spoilt(LOGP, [None, -0.5]),
    "nan is no log-probability": spoilt(LOGP, [float("nan"), -0.5]),
    "0.5 is no log-probability of a token": spoilt(LOGP, [-0.5, 0.5]),
    "-9999.0 is no log-probability of a token": spoilt(LOGP, [-0.5, -9999.0]),
    "of other tokens": spoilt((*CHOICE, "logprobs", "tokens"), ["token_id:7", "token_id:2"]),
}  # fmt: skip


def test_an_answer_is_its_tokens_with_the_end_their_log_probabilities_and_whether_it_was_cut():
    assert QUESTION.row(REPLY) == Row([7, END], [-0.5, 0.0], False)
    cut = spoilt((*CHOICE, "finish_reason"), "length")
    tokens = {"tokens": [f"token_id:{t}" for t in (7, 8, 9)], "token_logprobs": [-1, -1, -1]}
    cut["choices"][0] |= {"token_ids": [7, 8, 9], "logprobs": tokens}
    assert QUESTION.row(cut) == Row([7, 8, 9], [-1.0, -1.0, -1.0], True)


@pytest.mark.parametrize("said", FAULTS)
def test_what_is_no_answer_is_refused_with_what_came(said):
    with pytest.raises(ValueError, match=said):
        QUESTION.row(FAULTS[said])


@pytest.mark.parametrize("reply", [None, [], "ok", 3, {}, {"choices": 1}])
def test_what_is_no_completion_is_refused(reply):
    with pytest.raises(ValueError, match="no choices came"):
        QUESTION.row(reply)


def test_every_number_is_asked_for_so_that_a_server_fills_in_none_of_its_own():
    asked = QUESTION.payload()
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, 0)
    assert (asked["min_p"], asked["repetition_penalty"]) == (0.0, 1.0)
    assert (asked["seed"], asked["n"], asked["logprobs"]) == (2**63 - 1, 1, 0)
    assert asked["stop_token_ids"] == [END]
    assert asked["prompt"] == [5, 6]
