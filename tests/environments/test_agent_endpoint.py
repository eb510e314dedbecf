"""The endpoint of agents refuses invalid calls and answers each call once."""

import json
import os
import resource
import socket
import threading
import urllib.error
import urllib.request

import pytest

from tandem.environments import Move
from tandem.environments.agent_endpoint import AgentServer, Endpoint, Session
from tandem.environments.call_formats import given_format
from tandem.environments.chat_api import (
    Request,
    Turn,
    completion,
    continuation,
    move_of,
    read_request,
    retold,
)
from tandem.environments.program import MOST_FILES
from tandem.remote.serving import has_hung_up

USER = {"role": "user", "content": "7?"}
BODY = json.dumps({"model": "m", "messages": [USER]})


@pytest.fixture(scope="module")
def endpoint():
    return Endpoint(max_request_bytes=4096)


@pytest.fixture
def session(endpoint):
    own = endpoint.open()
    yield own
    endpoint.close(own, "the episode is over")


def call(session, body=BODY, *, path="/chat/completions", token=None, url=None):
    """The status and the answer of a call."""
    headers = {"Authorization": f"Bearer {session.token if token is None else token}"}
    data = body.encode() if isinstance(body, str) else body
    request = urllib.request.Request((url or session.url) + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def calling(session, body=BODY):
    """A call in progress, and the list that receives its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call(session, body)))
    thread.start()
    return thread, answers


def answer_call(session, text="8", number=1):
    session.answer(completion(Turn(role="assistant", content=text), move(text, number), "m"))


def move(text="8", number=1, **options):
    return Move(text=text, number=number, key=3, read=5, written=2, **options)


def test_a_call_waits_for_the_move_and_gets_it(session):
    thread, answers = calling(session)
    request = session.events.get(timeout=20)
    assert request.turns == (Turn(role="user", content="7?"),)
    answer_call(session)
    thread.join()
    ((status, answer),) = answers
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "8")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def stream(session, **options):
    """The events of a call, read as by a client."""
    body = json.dumps({"model": "m", "messages": [USER], "stream": True} | options).encode()
    headers = {"Authorization": f"Bearer {session.token}"}
    request = urllib.request.Request(f"{session.url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=20) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        *lines, end = [line[6:] for line in reply.read().decode().split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_call_that_asks_for_a_stream_gets_the_same_turn_as_events(session):
    thread, answers = calling(session)
    session.events.get(timeout=20)
    calls = (("add", '{"a": 1}'), ("add", "{}"))
    session.answer(completion(Turn(role="assistant", content="", calls=calls), move(), "m"))
    thread.join()
    choice = answers[0][1]["choices"][0]
    said, ended = stream(session)
    delta = said["choices"][0]["delta"]
    assert [call.pop("index") for call in delta["tool_calls"]] == [0, 1]
    assert delta == choice["message"]
    assert (said["object"], said["choices"][0]["finish_reason"]) == ("chat.completion.chunk", None)
    assert (ended["choices"][0]["delta"], ended["choices"][0]["finish_reason"]) == (
        {},
        "tool_calls",
    )
    *_, counted = stream(session, stream_options={"include_usage": True})
    assert (counted["choices"], counted["usage"]) == ([], answers[0][1]["usage"])


def test_a_call_that_is_repeated_gets_the_same_answer_and_is_no_turn(session):
    first, _ = calling(session)
    session.events.get(timeout=20)
    second, answers = calling(session)
    answer_call(session)
    first.join()
    second.join()
    assert answers[0] == call(session)
    assert session.events.empty()


def test_calls_of_tools_that_the_policy_did_not_make_are_no_conversation():
    made = Turn(role="assistant", content="", calls=(("add", "{}"),))
    with pytest.raises(ValueError, match="tool_calls that the policy did not make"):
        retold([*KNOWN[:2], made, *turns("t83")], moves=[KNOWN[2]])


def test_a_call_in_a_thought_reaches_no_agent():
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert move_of(f"<think>{call}</think>83", given_format(None, None, {})).calls == ()
    assert move_of(f"not yet</think>{call}", given_format(None, None, {})).calls == (("add", "{}"),)


def test_a_call_with_other_tools_is_another_call():
    session = Session("", "")
    first = Request(turns=KNOWN[:2])
    session._admit(first)
    session.answer(b"")
    changed = Request(turns=KNOWN[:2], tools=({"function": {"name": "add"}},))
    session._admit(changed)
    assert [session.events.get_nowait() for _ in range(2)] == [first, changed]


def test_a_call_that_is_repeated_for_ever_is_refused(session):
    thread, _ = calling(session)
    session.events.get(timeout=20)
    answer_call(session)
    thread.join()
    assert [call(session)[0] for _ in range(4)] == [200, 200, 200, 400]


def test_a_second_conversation_of_a_session_is_refused(session):
    thread, answers = calling(session)
    session.events.get(timeout=20)
    other = json.dumps({"messages": [{"role": "user", "content": "another"}]})
    status, said = call(session, other)
    assert (status, said) == (
        400,
        "a session allows one call at a time; the previous one is unanswered",
    )
    answer_call(session)
    thread.join()
    assert answers[0][0] == 200


def test_what_waits_when_a_session_ends_is_refused_and_so_is_what_comes_later(endpoint, session):
    thread, answers = calling(session)
    session.events.get(timeout=20)
    endpoint.close(session, "the episode is over")
    thread.join()
    assert answers == [(403, "the episode is over")]
    assert call(session)[0] == 404


def test_nobody_answers_for_another_session(endpoint, session):
    other = endpoint.open()
    assert call(session, url=other.url) == (401, "a bearer token is required")
    assert call(session, token="") == (401, "a bearer token is required")
    assert call(session, url=session.url.replace("/v1", "x/v1"))[0] == 404
    assert call(session, path="/completions")[0] == 404
    assert session.events.empty() and other.events.empty()


def test_the_one_model_is_named(session):
    request = urllib.request.Request(
        f"{session.url}/models", headers={"Authorization": f"Bearer {session.token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        (model,) = json.load(reply)["data"]
    assert model["id"] == "policy"


def chat(**options):
    return json.dumps({"messages": [USER], **options})


def saying(**message):
    return json.dumps({"messages": [message]})


NO_CALLS = {
    "no JSON": ("{", "the body is not JSON"),
    "no text": (b"\xff\xfe", "the body is not JSON"),
    "deep, beyond the parser": ("[" * 4000, "the body is not JSON"),
    "deep": (chat(more=json.loads("[" * 40 + "]" * 40)), "the body has over 32 levels of lists"),
    "a number without end": ('{"messages": [], "n": ' + "9" * 3500 + "}", "a call has one answer"),
    "too large": (chat(more="x" * 4096), "the body exceeds 4096 bytes"),
    "no messages": ("{}", "the body must be an object with a list of messages"),
    "messages that are none": ('{"messages": []}', "the last message must be of a user"),
    "a turn of the policy": (saying(role="assistant", content="7"), "the last message must be of"),
    "a role that is none": (saying(role="root", content="7"), "a message must have a role"),
    "no message": ('{"messages": [7]}', "a message must have a role"),
    "a picture": (saying(role="user", content=[{"type": "image_url"}]), "content must be text or"),
    "half a pair": (saying(role="user", content="\ud800"), "content contains an unpaired surr"),
    "a role that is a list": (saying(role=["user"], content="7"), "a message must have a role"),
    "options of a stream": (chat(stream=True, stream_options=[7]), "stream_options must be an obj"),
    "several answers": (chat(n=2), "a call has one answer: leave n out"),
    "log-probabilities": (chat(logprobs=True), "log-probabilities are not supported"),
    "tools": (chat(tools=[{"type": "function"}]), "a tool must be a function with a name"),
    "arguments beyond the parser": (
        saying(role="user", content="7", tool_calls=[{"function": {
            "name": "add", "arguments": "[" * 2000
        }}]),
        "a tool call must be a function with name and",
    ),
    "half a pair in a tool": (
        chat(tools=[{"function": {"name": "add", "description": "\ud800"}}]),
        "tools contains an unpaired surrogate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), NO_CALLS.values(), ids=NO_CALLS)
def test_what_is_no_call_is_refused_in_one_line_and_is_no_turn(session, body, said):
    status, line = call(session, body)
    assert status in (400, 413) and line.startswith(said)
    assert session.events.empty()


def test_texts_in_parts_and_developers_are_read_as_any(session):
    parts = [{"type": "text", "text": "7"}, {"type": "text", "text": "?"}]
    developer = {"role": "developer", "content": "be brief"}
    body = json.dumps({"messages": [developer, {"role": "user", "content": parts}]})
    got = read_request(body.encode())
    assert got.turns == (Turn(role="system", content="be brief"), Turn(role="user", content="7?"))


def test_as_many_rows_are_answered_as_the_system_has_descriptors_for():
    """Also beyond descriptor 1024, the limit of `select`."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(before[1], MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        one, other = socket.socketpair()
        with AgentServer(max_request_bytes=4096) as server:
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most
            assert server.capacity.max_connections == most // 3
        os.dup2(one.fileno(), most - 1)
        with one, other, socket.socket(fileno=most - 1) as last:
            assert not has_hung_up(last)
            other.close()
            assert has_hung_up(last)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def turns(*pairs):
    roles = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return [Turn(role=roles[pair[0]], content=pair[1:]) for pair in pairs]


KNOWN = turns("ss", "uq", "a<think>\nhm\n</think>\n\n7 ")


@pytest.mark.parametrize(
    ("asked", "new"),
    [
        (turns("ss", "uq", "a<think>\nhm\n</think>\n\n7 ", "uhigher"), turns("uhigher")),
        (turns("ss", "uq", "a7", "tx", "uy"), turns("tx", "uy")),
    ],
    ids=["as it was", "without the thought"],
)
def test_what_is_new_in_a_call_stands_behind_the_conversation(asked, new):
    assert continuation(KNOWN, asked) == new


def test_a_thought_that_the_template_opened_may_be_left_out_as_any():
    known = turns("uq", "ahm\n</think>\n\n7")
    assert continuation(known, turns("uq", "a7", "ux")) == turns("ux")
    assert continuation(known, turns("uq", "a8", "ux")) is None


@pytest.mark.parametrize(
    "asked",
    [
        turns("ss", "uq", "a8", "ux"),
        turns("ss", "uq!", "a7", "ux"),
        turns("uq", "a7", "ux"),
        turns("ss", "uq"),
        turns("ss", "uq", "a7", "ux", "a9", "uy"),
    ],
)
def test_a_call_that_says_the_conversation_otherwise_does_not_continue_it(asked):
    assert continuation(KNOWN, asked) is None


def test_settings_of_sampling_are_named_as_ignored():
    assert read_request(chat(temperature=0.2, stop=["."], min_p=0.1).encode()).ignored == (
        "temperature",
        "stop",
        "min_p",
    )
    assert read_request(BODY.encode()) == Request(
        turns=(Turn(role="user", content="7?"),), model="m"
    )


@pytest.mark.parametrize("calls", [(), (("add", "{}"),)])
def test_a_move_that_was_cut_says_so(calls):
    body = completion(Turn(role="assistant", content="8", calls=calls), move(truncated=True), "m")
    assert json.loads(body)["choices"][0]["finish_reason"] == "length"
