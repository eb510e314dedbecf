"""A reward server scores as the run itself would, and answers any request with a line."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch
from test_video_align import write_filmed, write_settings, write_video_reward
from tiny_vision import write_vision

from tandem.config import ConfigError
from tandem.contracts import declare
from tandem.remote import Limits, Retries
from tandem.reward_server import serve as door
from tandem.reward_server.scoring import make_scorer, refuse_unserved
from tandem.reward_server.server import Capacity, ScoreServer
from tandem.rewards import Reward, Rewards
from tandem.rewards.http import HttpReward
from tandem.rewards.images import colour_share, jpeg_compressibility
from tandem.rewards.text import exact_match, regex_answer, target_length
from tandem.types import Prompt

ROOT = Path(__file__).parents[2]
TOKEN = "canary-token-77aa"
SAMPLE = {"id": "a", "output": "4", "prompt": {"id": 0, "source": "t", "text": "?", "answer": "4"}}
REQUEST = json.dumps({"version": 1, "samples": [SAMPLE]}).encode()
JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(score, *, token=None, **capacity):
    server = ScoreServer(("127.0.0.1", 0), score, token=token, capacity=Capacity(**capacity))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask_server(server, *, batch_size=None):
    return Rewards({"http": Reward(HttpReward(url=server.url), batch_size=batch_size)})


TEXTS = {
    "exact_match": Reward(exact_match),
    "regex_answer": Reward(partial(regex_answer, pattern=r"-?\d+"), weight=0.3),
    "target_length": Reward(partial(target_length, target=7), weight=-0.7, range=(0, 1)),
}
PALETTE = {"red": (255, 0, 0), "blue": (0, 0, 255)}
PICTURES = {
    "jpeg": Reward(jpeg_compressibility, weight=0.1),
    "colour": Reward(partial(colour_share, palette=PALETTE), weight=1 / 3),
}


def texts(seed):
    draw = random.Random(seed)
    outputs = [f"{draw.choice(['', 'so ', 'é'])}{draw.randrange(4)}" for _ in range(24)]
    answers = [draw.choice(["1", "2", None]) for _ in outputs]
    prompts = [Prompt(id=i, source="t", text="?", answer=a) for i, a in enumerate(answers)]
    return outputs, prompts


def pictures(seed):
    draw = torch.Generator().manual_seed(seed)
    outputs = list(torch.randint(256, (8, 16, 12, 3), generator=draw, dtype=torch.uint8))
    names = ["red", "blue", "neither"] * 3
    prompts = [Prompt(id=i, source="t", text=name) for i, name in enumerate(names[:8])]
    return outputs, prompts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("parts", "case"), [(TEXTS, texts), (PICTURES, pictures)])
def test_what_comes_back_is_what_the_run_would_have_said_itself(seed, parts, case):
    outputs, prompts = case(seed)
    own = Rewards(parts)(outputs, prompts)
    with serving(make_scorer(Rewards(parts))) as server:
        for batch_size in (None, 5):
            got = ask_server(server, batch_size=batch_size)(outputs, prompts)
            assert torch.equal(got.total, own.total)
            assert torch.equal(got.scored, own.scored)
    assert own.scored.any()


def test_a_reward_that_fails_says_so_of_its_rows_and_no_more():
    def moody(output, prompt):
        if output == "bad":
            raise ValueError("no such thing")
        return float("nan") if output == "worse" else 1.0

    rewards = Rewards({"moody": Reward(moody), "exact_match": Reward(exact_match)})
    prompts = [Prompt(id=i, source="t", text="?", answer="ok") for i in range(3)]
    with serving(make_scorer(rewards)) as server:
        ask = ask_server(server)
        scores = ask(["bad", "ok", "worse"], prompts)
    assert scores.scored.tolist() == [False, True, False]
    assert scores.total.tolist() == [0, 2, 0]
    faults = {reason.partition(" at ")[0]: count for reason, count in ask.pop_faults().items()}
    assert faults == {
        "http: the server says: moody: raised ValueError: 'no such thing'": 1,
        "http: the server says: moody: gave a number that is not finite or over 1e18": 1,
    }


def test_no_opinion_stays_no_opinion():
    with serving(make_scorer(Rewards({"exact_match": Reward(exact_match)}))) as server:
        ask = ask_server(server)
        ask(["a"], [Prompt(id=0, source="t", text="?")])
    assert ask.pop_faults() == {"http: gave none": 1}


@pytest.fixture(scope="module")
def closed():
    """A server with a token and small limits."""
    rewards = Rewards({"exact_match": Reward(exact_match)})
    with serving(make_scorer(rewards), token=TOKEN, max_request_bytes=4096) as server:
        yield server


BEARER = {"Authorization": f"Bearer {TOKEN}"}
ANSWERS = {  # method, path, headers, body -> status and message
    "right": ("POST", "/score", JSON | BEARER, REQUEST, 200, None),
    "no token": ("POST", "/score", JSON, REQUEST, 401, "a bearer token is required"),
    "another token": (
        "POST", "/score", JSON | {"Authorization": "Bearer canary-token-77ab"}, REQUEST, 401,
        "a bearer token is required",
    ),
    "no bearer": (
        "POST", "/score", JSON | {"Authorization": TOKEN}, REQUEST, 401,
        "a bearer token is required",
    ),
    "a form": (
        "POST", "/score", BEARER | {"Content-Type": "text/plain"}, REQUEST, 415,
        "the content type must be application/json or application/x-safetensors",
    ),
    "no type": (
        "POST", "/score", BEARER, REQUEST, 415,
        "the content type must be application/json or application/x-safetensors",
    ),
    "too large": (
        "POST", "/score", JSON | BEARER, b" " * 5000, 413,
        "the body exceeds 4096 bytes (max_request_bytes)",
    ),
    "chunks": (
        "POST", "/score", JSON | BEARER, iter([REQUEST]), 411, "a Content-Length is required"
    ),
    "no JSON": ("POST", "/score", JSON | BEARER, b"{", 400, "the body is not JSON"),
    "no picture": (
        "POST", "/score", BEARER | {"Content-Type": "application/x-safetensors"}, b"{", 400,
        "the body is not a safetensors file",
    ),
    "elsewhere": (
        "POST", "/", JSON | BEARER, REQUEST, 404, "supported: GET /health and POST /score"
    ),
    "a file": ("GET", "/../etc/passwd", {}, b"", 404, "supported: GET /health and POST /score"),
    "health": ("GET", "/health", {}, b"", 200, None),
    "PUT": ("PUT", "/score", BEARER, b"", 501, "unsupported or malformed request"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS)
def test_every_request_is_answered_with_a_status_and_a_line(closed, case):
    method, path, headers, body, status, said = case
    reply = httpx.request(method, closed.url + path, headers=headers, content=body)
    assert reply.status_code == status
    if said is not None:
        assert reply.json() == {"error": said}
    assert ("WWW-Authenticate" in reply.headers) == (status == 401)
    assert TOKEN not in reply.text


def test_a_large_body_is_refused_before_it_is_read(closed):
    """The client announces a large body and sends nothing of it."""
    head = f"POST /score HTTP/1.1\r\nContent-Length: {1 << 40}\r\n"
    lines = [f"{name}: {value}\r\n" for name, value in (JSON | BEARER).items()]
    with socket.create_connection(closed.server_address) as line:
        line.sendall(f"{head}{''.join(lines)}\r\n".encode())
        assert b" 413 " in line.recv(1 << 12)


def test_what_fails_in_the_server_is_told_to_its_log_alone(capfd):
    def broken(rows):
        raise RuntimeError("inner-canary")

    with serving(broken) as server:
        reply = httpx.post(f"{server.url}/score", headers=JSON, content=REQUEST)
    assert (reply.status_code, reply.json()) == (
        500, {"error": "the server failed; see its log"}
    )  # fmt: skip
    assert "inner-canary" in capfd.readouterr().err


def test_more_requests_than_there_is_room_for_are_told_to_come_back():
    begun, go_on = threading.Event(), threading.Event()

    def waits(rows):
        begun.set()
        go_on.wait(10)
        return [1.0 for _ in rows]

    with serving(waits, max_requests=1) as server:
        post = partial(httpx.post, f"{server.url}/score", headers=JSON, content=REQUEST)
        replies = []
        first = threading.Thread(target=lambda: replies.append(post()))
        first.start()
        assert begun.wait(10)
        refused = post()
        health = httpx.get(f"{server.url}/health")
        assert not server.drain(0.01)
        go_on.set()
        first.join()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert health.json() == {"status": "ok"}
    assert replies[0].json()["scores"] == [{"id": "a", "score": 1.0}]


def test_clients_that_were_told_to_come_back_do():
    def slowly(rows):
        time.sleep(0.05)
        return [float(row.output) for row in rows]

    prompt = Prompt(id=0, source="t", text="?")
    with serving(slowly, max_requests=1) as server:
        ask = HttpReward(url=server.url, retries=Retries(count=9, wait=0.1))
        got = {}
        threads = [
            threading.Thread(target=lambda i=i: got.update({i: ask([str(i)], [prompt])}))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {i: [i] for i in range(4)}


def test_the_reward_is_asked_in_one_thread_at_a_time():
    inside, most = [], []

    def watched(rows):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return [1.0]

    with serving(watched) as server:
        post = partial(httpx.post, f"{server.url}/score", headers=JSON, content=REQUEST)
        threads = [threading.Thread(target=post) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1] * 6


def test_who_has_hung_up_is_not_scored():
    begun, go_on, scored = threading.Event(), threading.Event(), []

    def waits(rows):
        begun.set()
        go_on.wait(10)
        scored.append(rows[0].output)
        return [1.0]

    with serving(waits) as server:
        prompt = Prompt(id=0, source="t", text="?")
        ask = HttpReward(url=server.url, limits=Limits(timeout=9), retries=Retries(count=0))
        first = threading.Thread(target=ask, args=(["patient"], [prompt]))
        first.start()
        assert begun.wait(10)
        hasty = HttpReward(url=server.url, limits=Limits(timeout=0.2), retries=Retries(count=0))
        [missing] = hasty(["hasty"], [prompt])
        assert "no complete reply within 0.2 s" in str(missing)
        go_on.set()
        first.join()
        assert ask(["later"], [prompt]) == [1.0]
        assert server.drain(10)
    assert scored == ["patient", "later"]


@pytest.mark.parametrize("first", [b"", b"POST /score HTTP/1.1\r\nX: "])
def test_a_request_that_drips_is_ended(first):
    with serving(lambda rows: [], request_timeout=0.3) as server:
        start, is_ended = time.monotonic(), False
        with socket.create_connection(server.server_address) as line:
            line.sendall(first)
            line.settimeout(0.05)
            while not is_ended and time.monotonic() - start < 60:
                try:
                    is_ended = line.recv(1) == b""
                except TimeoutError:
                    if first:
                        line.sendall(b"y")
                except OSError:
                    is_ended = True
        assert is_ended


def test_more_connections_than_there_is_room_for_are_closed():
    with serving(lambda rows: [], max_connections=2) as server:
        lines = [socket.create_connection(server.server_address) for _ in range(3)]
        lines[2].settimeout(5)
        assert lines[2].recv(1) == b""
        for line in lines:
            line.close()
        time.sleep(0.1)
        assert httpx.get(f"{server.url}/health").status_code == 200


def words_of(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        door.main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.rstrip("\n")


REFUSED = {
    "port=8123": "reward is missing: choose one, for example reward=exact_match",
    "reward=exact_mach": "unknown option of reward 'exact_mach': did you mean 'exact_match'?",
    "reward=exact_match prot=1": "unknown key 'prot': did you mean 'port'?",
    "reward=exact_match seed=1": (
        "unknown key 'seed': there are reward, plugins, host, port, max_request_bytes, "
        "max_requests, max_connections, request_timeout"
    ),
    "reward=aesthetic head=x": "unknown key 'head': write reward.aesthetic.function.head=...",
    "reward=exact_match --port 70": "cannot read '--port': it has no value; write port=..., or "
    "--help for help",
    "reward=exact_match port=70000": "port=70000: must be between 0 and 65535; 0 picks a free port",
    "reward=exact_match port=abc": "port: expected int, got 'abc'",
    "reward=exact_match max_requests=0": (
        "max_request_bytes, max_requests, max_connections and request_timeout must be positive"
    ),
    "reward=target_length": (
        "reward.target_length.function.target is not set: add reward.target_length.function."
        "target=..."
    ),
    "reward=exact_match reward.exact_match.range=[1,0]": (
        "range=[1.0, 0.0] of a reward must increase and stay within 1e18 of 0"
    ),
    "reward=exact_match host=0.0.0.0": (
        "host=0.0.0.0 can be reached from other machines: set the environment variable "
        "TANDEM_REWARD_TOKEN to a token, or host=127.0.0.1"
    ),
    "reward=exact_match host=my.host": (
        "host=my.host can be reached from other machines: set the environment variable "
        "TANDEM_REWARD_TOKEN to a token, or host=127.0.0.1"
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line(monkeypatch, capsys, words, said):
    monkeypatch.delenv(door.TOKEN, raising=False)
    assert words_of(capsys, *words.split()) == said


FILES = {
    "dino_diversity": {"path": write_vision},
    "dino_similarity": {"path": write_vision},
    "video_align": {
        "path": write_filmed, "weights": write_video_reward, "settings": write_settings
    },
    "motion_smoothness": {},
}  # fmt: skip
NEEDED = {
    "dino_diversity": "compares the samples of a prompt, but a server scores each alone",
    "dino_similarity": "reads the images of a prompt, which no server receives",
    "video_align": "scores whole films, but a server receives their frames one by one",
    "motion_smoothness": "scores whole films, but a server receives their frames one by one",
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_reward_that_needs_more_than_is_sent_stays_in_the_run(tmp_path, name):
    files = {key: write(tmp_path) for key, write in FILES[name].items()}
    words = [f"reward.{name}.function.{key}={path}" for key, path in files.items()]
    with pytest.raises(ConfigError) as refused:
        door.build_rewards(door.compose_rewards([f"reward={name}", *words]))
    assert str(refused.value) == f"reward.{name} {NEEDED[name]}; choose it in train.py"


@pytest.mark.parametrize(
    ("reads", "unsent"),
    [({"answer", "fields"}, None), ({"answer", "images"}, "images"), ({"size"}, "size")],
)
def test_what_a_reward_reads_is_sent_or_it_is_refused(reads, unsent):
    rewards = Rewards({"own": Reward(declare(reads=reads)(lambda output, prompt: 1.0))})
    refused = pytest.raises(ValueError, match=rf"^reward\.own reads the {unsent} of a prompt")
    with nullcontext() if unsent is None else refused:
        refuse_unserved(rewards)


def test_a_short_token_is_refused(monkeypatch, capsys):
    monkeypatch.setenv(door.TOKEN, "short")
    said = words_of(capsys, "reward=exact_match", "host=0.0.0.0")
    assert said == "TANDEM_REWARD_TOKEN has fewer than 8 characters: set a longer token"


def test_a_port_that_is_taken_is_named(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = words_of(capsys, "reward=exact_match", f"port={port}")
    assert said == f"host=127.0.0.1 port={port}: Address already in use"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")],
)
def test_what_is_loopback(host, is_loopback):
    assert door.Place(host=host).is_loopback == is_loopback


def test_the_help_names_every_key_with_its_default(capsys):
    door.main(["--help"])
    page = capsys.readouterr().out
    for line in ("port=8123 ", "host=127.0.0.1 ", "max_requests=32 ", "TANDEM_REWARD_TOKEN "):
        assert f"  {line}" in page


@pytest.mark.system
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_it_serves_until_it_is_told_to_end(number):
    words = ["plugins=[experiments.own_reward.reward]", "reward=[exact_match,places]", "port=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem.reward_server.serve", *words],
        cwd=ROOT, env=os.environ | {door.TOKEN: TOKEN}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    began = process.stdout.readline()
    url = began.split()[2]
    assert began == f"serving at {url} for clients with the token\n"
    reply = httpx.post(f"{url}/score", headers=JSON | BEARER, content=REQUEST)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert reply.json()["scores"] == [{"id": "a", "score": 2.0}]
    assert process.returncode == 0
    assert said.splitlines()[0].startswith("1 samples in ")
    assert said.splitlines()[1:] == ["ended"]
    assert TOKEN not in began + said


@pytest.mark.system
def test_a_second_ctrl_c_drops_the_requests_that_a_server_still_answers():
    code = """
import time
from tandem.remote.serving import Capacity
from tandem.reward_server import serve
from tandem.reward_server.server import ScoreServer
from tandem.stop import end_when_told
def score(rows):
    print("scoring", flush=True)
    time.sleep(60)
with end_when_told():
    serve.run(ScoreServer(("127.0.0.1", 0), score, token=None, capacity=Capacity()))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    url = process.stdout.readline().split()[2]
    with ThreadPoolExecutor() as pool:
        pool.submit(httpx.post, f"{url}/score", headers=JSON, content=REQUEST)
        assert process.stdout.readline() == "scoring\n"
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        said, _ = process.communicate(timeout=5)  # less than the time for open requests
    assert (process.returncode, said) == (130, "\nstopped by Ctrl-C\n")


def test_a_client_with_the_wrong_token_is_told_what_to_set(closed, monkeypatch):
    monkeypatch.setenv("TANDEM_REWARD_TOKEN", "not-the-canary")
    ask = Rewards({"http": Reward(HttpReward(url=closed.url, limits=Limits(timeout=5)))})
    ask(["4"], [Prompt(id=0, source="t", text="?")])
    [reason] = ask.pop_faults()
    assert reason.startswith(
        f"http: {closed.url}/score: 401 Unauthorized; put the right token into the environment "
        "variable TANDEM_REWARD_TOKEN"
    )
    assert "canary" not in reason


def test_the_example_of_the_document_is_answered_as_it_says():
    text = (ROOT / "docs" / "remote_rewards.md").read_text()
    asked, said = re.search(r"^ +curl .* -d '(.*)'\n\n +(\{.*\})$", text, re.M).groups()
    with serving(make_scorer(Rewards({"exact_match": Reward(exact_match)}))) as server:
        reply = httpx.post(f"{server.url}/score", headers=JSON, content=asked)
    assert reply.json() == json.loads(said)
