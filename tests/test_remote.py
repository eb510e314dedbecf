"""A remote endpoint with any fault costs bounded time and memory, and the fault is reported."""

import logging
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from faulty_server import (
    drips,
    drips_headers,
    half_json,
    hangs_up,
    huge,
    says,
    sends,
    serving,
    slow,
)

from tandem.remote import (
    BadReply,
    Breaker,
    Endpoint,
    Late,
    LeftAlone,
    Limits,
    Rejected,
    RemoteError,
    Retries,
    Unreachable,
    Unwell,
)
from tandem.remote.deadline import Deadline

TOKEN = "canary-token-4f1d"
ONCE = Retries(count=0)
QUICK = Retries(count=3, wait=0.01, longest=0.02)


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.fixture(autouse=True, params=[False, True], ids=["single", "kept"])
def _fresh(server, request, monkeypatch):
    """Kept connections fail with the same messages as single ones."""
    monkeypatch.setattr(Connections, "kept", request.param)
    server.behaviour = says({"ok": True})
    server.script.clear()
    server.seen.clear()


class Connections:
    """Whether the endpoints of a test keep their connections."""

    kept = False


def endpoint(url, *, limits=None, retries=ONCE, breaker=None, token_env=None):
    limits = limits or Limits(connect=5, timeout=9, deadline=20, max_reply_bytes=1 << 20)
    return Endpoint(
        url, where="reward.x", limits=limits, retries=retries, breaker=breaker,
        token_env=token_env, keep_alive=Connections.kept,
    )  # fmt: skip


def fault_of(behaviour, server, **options):
    server.behaviour = behaviour
    with pytest.raises(RemoteError) as raised:
        endpoint(server.url, **options).post("/score", b"{}")
    return raised.value


def test_what_was_sent_arrives_and_what_is_said_comes_back(server):
    server.behaviour = says({"scores": [1, None]}, Content_Location="/x")
    assert endpoint(server.url + "/").post("/score", b'{"a": 1}') == {"scores": [1, None]}
    [(method, path, headers, body)] = server.seen
    assert (method, path, body) == ("POST", "/score", b'{"a": 1}')
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert endpoint(server.url).get("/health") == {"scores": [1, None]}


SAID = [
    (says("down", 500), Unwell, "500 Internal Server Error, '\"down\"'"),
    (says("full", 429), Unwell, "429 Too Many Requests, '\"full\"'"),
    (says("what?", 400), Rejected, "400 Bad Request, '\"what?\"'"),
    (
        says("no", 401),
        Rejected,
        "401 Unauthorized; put the right token into the environment variable None, '\"no\"'",
    ),
    (
        says("", 302, Location="http://127.0.0.1:1/"),
        BadReply,
        "302 Found, and redirects are not followed; give the final address as reward.x.url",
    ),
    (hangs_up, Unreachable, "the connection broke before the reply was complete; see reward.x.url"),
    (
        half_json,
        Unreachable,
        "the connection broke before the reply was complete; see reward.x.url",
    ),
    (sends(b'{"scores": [1, 2'), BadReply, "the reply of 16 bytes is not JSON; see reward.x.url"),
    (sends(b"\xff\x00" * 8), BadReply, "the reply of 16 bytes is not JSON; see reward.x.url"),
    (sends(b"[" * 99_999), BadReply, "the reply of 99999 bytes is not JSON; see reward.x.url"),
    (
        sends(b"{}", "text/html"),
        BadReply,
        "expected application/json, got text/html; see reward.x.url",
    ),
    (
        sends(b"{}", Content_Encoding="gzip"),
        BadReply,
        "the reply is compressed, although none was requested",
    ),
]


@pytest.mark.parametrize(("behaviour", "kind", "said"), SAID, ids=[said for *_, said in SAID])
def test_a_fault_says_where_what_came_and_what_to_set(server, behaviour, kind, said):
    fault = fault_of(behaviour, server)
    assert type(fault) is kind
    assert str(fault) == f"{server.url}/score: {said}"


def test_nobody_listening_is_said_at_once(free_port):
    url = f"http://127.0.0.1:{free_port}"
    with pytest.raises(Unreachable, match=rf"^{url}/score: no connection \(.*refused\); see rewar"):
        endpoint(url).post("/score", b"{}")


@pytest.mark.parametrize("behaviour", [slow(30), drips, drips_headers])
def test_no_reply_outlasts_its_time_however_it_drips(server, behaviour):
    start = time.monotonic()
    limits = Limits(connect=1, timeout=0.3, deadline=9, max_reply_bytes=1 << 20)
    fault = fault_of(behaviour, server, limits=limits)
    assert time.monotonic() - start < 25  # the server would have taken 30, or for ever
    assert type(fault) is Late
    assert str(fault).endswith("no complete reply within 0.3 s; see reward.x.limits.timeout")


def test_retries_end_at_the_deadline_of_the_call(server):
    start = time.monotonic()
    limits = Limits(connect=1, timeout=0.9, deadline=1, max_reply_bytes=1)
    server.script.append(late_503)
    fault = fault_of(slow(30), server, limits=limits, retries=QUICK)
    assert time.monotonic() - start < 25
    assert 1 <= len(server.seen) <= 2  # of four allowed attempts
    assert str(fault).endswith("no complete reply within 1 s; see reward.x.limits.deadline")


def late_503(handler, body):
    time.sleep(0.4)
    handler.reply(503, b"")


def test_attempts_that_each_take_too_long_are_told_by_their_own_limit(server):
    limits = Limits(connect=1, timeout=0.6, deadline=1, max_reply_bytes=1)
    fault = fault_of(slow(30), server, limits=limits, retries=QUICK)
    assert len(server.seen) == 2  # the second is cut short
    assert str(fault).endswith("no complete reply within 0.6 s; see reward.x.limits.timeout")


@pytest.mark.parametrize("announced", [True, False])
def test_a_gigabyte_is_cut_off_at_the_limit(server, announced):
    behaviour = huge(announced=announced)
    fault = fault_of(behaviour, server)
    assert type(fault) is BadReply
    assert str(fault).endswith(
        "the reply exceeds 1048576 bytes; raise reward.x.limits.max_reply_bytes"
    )
    assert behaviour.sent < 32 << 20  # the contents of both socket buffers


def test_a_compressed_bomb_is_not_unpacked(server):
    fault = fault_of(sends(b"\x1f\x8b", Content_Encoding="br"), server)
    assert "compressed" in str(fault)


@pytest.mark.parametrize("bad", [says("", 503), hangs_up, half_json, says("", 429)])
def test_what_may_pass_is_tried_again(server, bad):
    server.script.extend([bad, bad])
    assert endpoint(server.url, retries=QUICK).post("/", b"{}") == {"ok": True}
    assert len(server.seen) == 3


@pytest.mark.parametrize("bad", [says("", 400), says("", 404), says("", 302), sends(b"{")])
def test_what_will_not_pass_is_asked_once(server, bad):
    fault_of(bad, server, retries=QUICK)
    assert len(server.seen) == 1


def ports(asks, server, times):
    """The client's ports, request by request."""
    found = []

    def notes(handler, body):
        found.append(handler.client_address[1])
        handler.reply(200, b"{}")

    server.behaviour = notes
    for _ in range(times):
        asks.post("/", b"{}")
    return found


def test_a_connection_serves_as_many_requests_as_it_is_kept_for(server):
    found = ports(endpoint(server.url), server, 4)
    assert len(set(found)) == (1 if Connections.kept else 4)


@pytest.mark.parametrize("told", [True, False])
def test_a_connection_that_the_server_closed_meanwhile_costs_no_request(server, told):
    asks = endpoint(server.url)  # makes one attempt

    def closes(handler, body):
        handler.reply(200, b"{}", **({"Connection": "close"} if told else {}))
        handler.close_connection = True

    server.script.extend([closes, closes])
    for _ in range(3):
        assert asks.post("/", b"{}") in ({}, {"ok": True})
        time.sleep(0.05)


@pytest.mark.parametrize("bad", [says("", 500), half_json, huge(announced=True)])
def test_a_connection_on_which_something_went_wrong_is_not_used_again(server, bad):
    asks = endpoint(server.url)
    server.script.append(bad)
    with pytest.raises(RemoteError):
        asks.post("/", b"{}")
    assert asks.post("/", b"{}") == {"ok": True}


def test_threads_share_as_many_connections_as_they_have_requests_at_a_time(server):
    asks, found = endpoint(server.url), set()

    def notes(handler, body):
        found.add(handler.client_address[1])
        time.sleep(0.01)
        handler.reply(200, body)

    server.behaviour = notes
    bodies = [str(number).encode() for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(partial(asks.post, "/"), bodies)) == list(range(40))
    assert len(found) == (4 if Connections.kept else 40)


def test_what_must_not_happen_twice_is_asked_once(server):
    server.script.append(says("", 503))
    with pytest.raises(Unwell):
        endpoint(server.url, retries=QUICK).post("/", b"{}", repeatable=False)
    assert len(server.seen) == 1


def test_the_wait_that_a_server_asks_for_is_kept(server):
    server.script.append(says("", 503, Retry_After="1"))
    start = time.monotonic()
    assert endpoint(server.url, retries=QUICK).post("/", b"{}") == {"ok": True}
    assert time.monotonic() - start >= 1


@pytest.mark.parametrize("after", ["99999", "Fri, 31 Dec 2199 23:59:59 GMT"])
def test_nobody_waits_beyond_the_deadline(server, after):
    start = time.monotonic()
    fault = fault_of(says("", 503, Retry_After=after), server, retries=QUICK)
    assert time.monotonic() - start < 60
    assert fault.retry_after > 20


@pytest.mark.parametrize(
    "after", ["soon", "-1", "", "1e9", "Mon, 99 Foo 2020", f"Mon, 01 Jan 2020 00:00:00 +{'9' * 24}"]
)
def test_a_wait_that_is_none_is_no_wait(server, after):
    assert fault_of(says("", 503, Retry_After=after), server).retry_after is None


def test_waits_double_up_to_their_longest_and_follow_from_what_is_sent():
    retries = Retries(count=9, wait=1.0, longest=6.0)
    for body in (b"a", b"b"):
        waits = [retries.pause(attempt, body) for attempt in range(1, 6)]
        assert waits == [retries.pause(attempt, body) for attempt in range(1, 6)]
        for wait, most in zip(waits, [1, 2, 4, 6, 6], strict=True):
            assert most / 2 <= wait <= most
    assert retries.pause(1, b"a") != retries.pause(1, b"b")


def test_an_ill_endpoint_is_left_alone_probed_and_taken_back():
    now = [0.0]
    with serving(behaviour=says("", 500)) as server:
        breaker = Breaker(failures=2, pause=10, clock=lambda: now[0])
        asks = endpoint(server.url, breaker=breaker)
        kinds = []
        for moment in (0, 0, 0, 9, 11, 12, 22):
            now[0] = moment
            if moment == 22:
                server.behaviour = says({"ok": True})
            try:
                kinds.append(asks.post("/", b"{}")["ok"])
            except RemoteError as error:
                kinds.append(type(error))
        assert kinds == [Unwell, Unwell, LeftAlone, LeftAlone, Unwell, LeftAlone, True]
        assert len(server.seen) == 4
        assert asks.post("/", b"{}") == {"ok": True}


def test_a_call_makes_all_its_attempts_before_it_counts(server):
    asks = endpoint(server.url, retries=QUICK, breaker=Breaker(failures=1, pause=60))
    server.script.extend([says("", 500)] * 3)
    assert asks.post("/", b"{}") == {"ok": True}
    server.behaviour = says("", 500)
    with pytest.raises(Unwell):
        asks.post("/", b"{}")
    assert len(server.seen) == 4 + 4
    assert asks.breaker.is_open


def test_a_probe_is_not_tried_again(server):
    breaker = Breaker(failures=1, pause=1e-6)
    breaker.record_failure(breaker.admits(), "down")
    assert type(fault_of(says("", 500), server, retries=QUICK, breaker=breaker)) is Unwell
    assert len(server.seen) == 1


def test_retries_bring_many_calls_at_a_time_over_a_short_outage(server):
    """A call that begins in the outage succeeds at its last attempt: 48 failures cost none."""
    left = {str(number).encode(): 3 for number in range(16)}

    def ill_at_first(handler, body):
        left[body] = left.get(body, 0) - 1
        says({"ok": True}, 503 if left[body] >= 0 else 200)(handler, body)

    server.behaviour = ill_at_first
    patient = Limits(connect=300, timeout=300, deadline=600, max_reply_bytes=1 << 20)
    asks = endpoint(server.url, limits=patient, retries=QUICK, breaker=Breaker(failures=5))
    bodies = [str(number).encode() for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(partial(asks.post, "/"), bodies)) == [{"ok": True}] * 64
    assert len(server.seen) == 64 + 48


def test_calls_that_were_under_way_together_fail_once():
    breaker = Breaker(failures=2, pause=60)
    for admission in [breaker.admits() for _ in range(16)]:
        breaker.record_failure(admission, "down")
    assert not breaker.is_open
    breaker.record_failure(breaker.admits(), "down")
    assert breaker.is_open
    assert breaker.admits() is None


def test_who_says_that_it_is_too_much_is_well(server):
    breaker = Breaker(failures=1, pause=60)
    assert type(fault_of(says("", 429), server, retries=QUICK, breaker=breaker)) is Unwell
    assert len(server.seen) == 4
    assert not breaker.is_open


def test_a_rejected_request_is_nothing_against_the_endpoint(server):
    asks = endpoint(server.url, breaker=Breaker(failures=1, pause=60))
    server.behaviour = says("", 400)
    for _ in range(3):
        with pytest.raises(Rejected):
            asks.post("/", b"{}")
    assert not asks.breaker.is_open


def test_of_many_threads_one_is_the_probe():
    now = [0.0]
    breaker = Breaker(failures=1, pause=10, clock=lambda: now[0])
    breaker.record_failure(breaker.admits(), "down")
    now[0] = 11.0
    admitted = []
    threads = [
        threading.Thread(target=lambda: admitted.append(breaker.admits())) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(admitted, key=str) == [1] + [None] * 15
    now[0] = 22.0  # the probe never returned
    assert breaker.admits() == 1


def test_the_token_is_read_at_every_request_and_shown_nowhere(server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    asks = endpoint(server.url, token_env="REMOTE_TEST_TOKEN")
    asks.post("/", b"{}")
    monkeypatch.setenv("REMOTE_TEST_TOKEN", TOKEN)

    def echoes(handler, body):
        said = handler.headers["Authorization"]
        handler.reply(400 if len(server.seen) == 2 else 200, f'"{said}"'.encode())

    server.behaviour = echoes
    with pytest.raises(Rejected) as raised:
        asks.post("/", b"{}")
    answer = asks.post("/", b"{}")
    given = [headers.get("Authorization") for _, _, headers, _ in server.seen]
    assert given == [None, f"Bearer {TOKEN}", f"Bearer {TOKEN}"]
    assert answer == "Bearer <redacted>"
    shown = f"{raised.value!r} {asks!r} {vars(asks)} {vars(asks.wire)} {caplog.text}"
    assert TOKEN not in shown
    assert "REMOTE_TEST_TOKEN" in repr(asks)


def test_a_token_in_the_reason_of_a_status_is_not_shown(server, monkeypatch):
    monkeypatch.setenv("REMOTE_TEST_TOKEN", TOKEN)

    def refuses(handler, body):
        handler.close_connection = True
        handler.wfile.write(f"HTTP/1.1 400 {TOKEN} is\twrong\r\n\r\n".encode())

    fault = fault_of(refuses, server, token_env="REMOTE_TEST_TOKEN")
    assert str(fault) == f"{server.url}/score: 400 <redacted> is wrong"


@pytest.mark.parametrize("length", ["abc", "\u00b2", "9" * 5000])
def test_a_length_that_is_none_is_a_fault_of_the_reply(server, length):
    def announces(handler, body):
        handler.close_connection = True
        handler.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{{}}".encode("l1"))

    fault = fault_of(announces, server)
    assert isinstance(fault, BadReply if Connections.kept else Unreachable)


def test_spaces_around_a_length_are_no_part_of_it(server):
    server.behaviour = lambda handler, _: handler.wfile.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:  2 \r\n\r\n{}"
    )
    assert endpoint(server.url).get("/") == {}


def test_a_token_that_is_none_is_named_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("REMOTE_TEST_TOKEN", "two words")
    with pytest.raises(RemoteError, match="REMOTE_TEST_TOKEN must be a token") as raised:
        endpoint(server.url, token_env="REMOTE_TEST_TOKEN").post("/", b"{}")
    assert "two words" not in str(raised.value)
    assert not server.seen


@pytest.mark.parametrize(
    "url", ["http://me:pw-canary@host/", "https://host/?key=pw-canary", "http://host/#pw-canary"]
)
def test_an_address_with_credentials_is_refused_without_showing_them(url):
    with pytest.raises(ValueError, match=r"^url: an address must not contain cred") as raised:
        endpoint(url)
    assert "pw-canary" not in str(raised.value)


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host", "http://", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"^url=.*: expected http"):
        endpoint(url)


@pytest.mark.parametrize("port", ["80000", "81a3", "-1"])
def test_a_port_that_is_none_is_named(port):
    with pytest.raises(
        ValueError, match=rf"^url=http://h:{port}: the port must be a number from 0"
    ):
        endpoint(f"http://h:{port}")


def test_numbers_that_no_call_can_have_are_refused():
    with pytest.raises(ValueError, match=r"^timeout=0: must be positive"):
        Limits(timeout=0)
    with pytest.raises(ValueError, match=r"^count=-1: must not be negative"):
        Retries(count=-1)
    with pytest.raises(ValueError, match=r"^pause=0: must be positive"):
        Breaker(pause=0)


def test_a_proxy_of_the_environment_is_no_way_to_this_machine(server, monkeypatch, free_port):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port}")
    assert endpoint(server.url).get("/") == {"ok": True}


def test_a_deadline_ends_a_connection_with_tls():
    ours, theirs = socket.socketpair()
    with theirs:
        context = ssl.create_default_context()
        own = context.wrap_socket(ours, server_hostname="x", do_handshake_on_connect=False)
        with own, Deadline(0.05) as deadline:
            deadline.watch(own)
            theirs.settimeout(20)
            assert theirs.recv(1) == b""  # shut down: nothing will come
        assert deadline.passed
