"""A failing remote reward costs the scores of its rows, says why, and recovers by itself."""

import json
import time
from pathlib import Path

import pytest
import torch
from faulty_server import drips, half_json, hangs_up, huge, says, sends, serving, slow
from omegaconf import OmegaConf
from safetensors.torch import load

from tandem.config import ConfigError, check, compose
from tandem.remote import Breaker, Limits, Retries
from tandem.rewards import Reward, Rewards
from tandem.rewards.http import HttpReward
from tandem.types import Prompt

TOKEN = "canary-token-9b02"
QUICK = {
    "limits": Limits(connect=5, timeout=9, deadline=20, max_reply_bytes=1 << 16),
    "retries": Retries(count=1, wait=0.01),
}


def prompts(count):
    return [Prompt(id=i, source="s", text="t", answer=str(i)) for i in range(count)]


def lengths(handler, body):
    """An external server: the length of each text, with ids in reverse order."""
    scores = [{"id": s["id"], "score": len(s["output"])} for s in json.loads(body)["samples"]]
    handler.reply(200, json.dumps({"scores": scores[::-1]}).encode())


@pytest.fixture(scope="module")
def server():
    with serving(behaviour=lengths) as server:
        yield server


@pytest.fixture(autouse=True)
def _fresh(server):
    server.behaviour = lengths
    server.script.clear()
    server.seen.clear()


def reward(server, *, batch_size=None, **options):
    return Reward(HttpReward(url=server.url, **{**QUICK, **options}), batch_size=batch_size)


IMPATIENT = Limits(connect=5, timeout=0.4, deadline=20)
OUTPUTS = ["", "a", "bb", "ccc", "dddd"]


def test_every_row_gets_the_score_of_its_id(server):
    values, faults = reward(server, batch_size=2)(OUTPUTS, prompts(5))
    assert values == [0, 1, 2, 3, 4]
    assert not faults
    assert [len(json.loads(body)["samples"]) for *_, body in server.seen] == [2, 2, 1]


def test_pictures_travel_as_safetensors(server):
    server.behaviour = says({"scores": []})
    pictures = [torch.full((2, 3, 3), value, dtype=torch.uint8) for value in (1, 2)]
    reward(server)(pictures, prompts(2))
    _, _, headers, body = server.seen[0]
    assert headers["Content-Type"] == "application/x-safetensors"
    sent = sorted(load(body).values(), key=lambda picture: picture.max().item())
    assert all(torch.equal(a, b) for a, b in zip(sent, pictures, strict=True))


def tell(url, said):
    return f"{url}/score: {said}"


KEY = "see reward.*.function"
BROKE = f"the connection broke before the reply was complete; {KEY}.url"
LATE = f"no complete reply within 0.4 s; {KEY}.limits.timeout"
LARGE = "the reply exceeds 65536 bytes; raise reward.*.function.limits.max_reply_bytes"
REDIRECT = "307 Temporary Redirect, and redirects are not followed; give the final address as"
FAULTS = {  # server behaviour -> handler, reason in the rows, retried, counts
    "answers 500": (says("down", 500), "500 Internal Server Error, '\"down\"'", True, True),
    "answers 429": (says("full", 429), "429 Too Many Requests, '\"full\"'", True, False),
    "answers 400": (says("what?", 400), "400 Bad Request, '\"what?\"'", False, False),
    "wants another token": (
        says("no", 401),
        "401 Unauthorized; put the right token into the environment variable TANDEM_REWARD_TOKEN, "
        "'\"no\"'",
        False,
        False,
    ),
    "is slow": (slow(30), LATE, True, True),
    "sends its reply in small pieces": (drips, LATE, True, True),
    "sends half of the announced bytes": (half_json, BROKE, True, True),
    "closes the connection": (hangs_up, BROKE, True, True),
    "sends half a JSON": (
        sends(b'{"scores": ['), f"the reply of 12 bytes is not JSON; {KEY}.url", False, True
    ),
    "sends 1 GB": (huge(), LARGE, False, True),
    "sends HTML": (
        sends(b"<html>", "text/html"),
        f"expected application/json, got text/html; {KEY}.url",
        False,
        True,
    ),
    "sends only wrong ids": (
        says({"scores": [{"id": "x", "score": 1}]}),
        f"the reply has none of the 3 ids; {KEY}.url",
        False,
        True,
    ),
    "sends other JSON": (
        says([1, 2, 3]), f"the reply has no list of scores; {KEY}.url", False, True
    ),
    "redirects": (
        says("", 307, Location="http://127.0.0.1:1/score"),
        f"{REDIRECT} reward.*.function.url",
        False,
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("behaviour", "said", "again", "counts"), FAULTS.values(), ids=FAULTS)
def test_a_fault_leaves_its_rows_missing_with_a_reason(server, behaviour, said, again, counts):
    server.behaviour = behaviour
    breaker = Breaker(failures=2, pause=60)
    own = {"limits": IMPATIENT} if said is LATE else {}
    ask = reward(server, breaker=breaker, **own)
    start = time.monotonic()
    values, faults = ask(OUTPUTS[:3], prompts(3))
    assert time.monotonic() - start < 9
    assert values == [None] * 3
    assert dict(faults) == {tell(server.url, said): 3}
    requests = 2 if again else 1
    assert server.count_requests(least=requests) == requests
    assert not breaker.is_open
    ask(OUTPUTS[:3], prompts(3))
    assert breaker.is_open == counts


REFUSED_LINE = "no connection ([Errno 111] Connection refused); see reward.*.function.url"
AT_DEFAULTS = {
    "reward.*": "reward.http",
    "0.4 s": "60 s",
    "65536": "16777216",
    "the 3 ids": "the 64 ids",
}
COLUMNS = ("server behaviour", "reason in the rows", "retried", "counts")
DOCUMENT = Path(__file__).parents[2] / "docs" / "remote_rewards.md"


def row(*cells):
    return f"| {' | '.join(cells)} |"


def table():
    """The table of the document, with the numbers of conf/reward/http.yaml."""
    rows = []
    absent = {"is not there": (None, REFUSED_LINE, True, True)}
    for name, (_, said, again, counts) in (absent | FAULTS).items():
        for here, there in AT_DEFAULTS.items():
            said = said.replace(here, there)
        rows.append(row(name, said, "yes" if again else "no", "yes" if counts else "no"))
    header, line = row(*COLUMNS), "|---|---|---|---|"
    return "\n".join([header, line, *rows, ""])


def test_the_table_of_the_document_is_what_happens():
    assert table() in DOCUMENT.read_text()


def test_nobody_there_leaves_all_missing(free_port):
    function = HttpReward(url=f"http://127.0.0.1:{free_port}", **QUICK)
    values, faults = Reward(function)(OUTPUTS, prompts(5))
    assert values == [None] * 5
    [(reason, count)] = faults.items()
    assert (reason.partition("/score: ")[2], count) == (REFUSED_LINE, 5)


def test_a_fault_of_a_row_is_its_own(server):
    def some(handler, body):
        ids = [sample["id"] for sample in json.loads(body)["samples"]]
        scores = [
            {"id": ids[0], "score": 1},
            {"id": ids[1], "score": None},
            {"id": ids[2], "score": None, "reason": "too \x1b[31mrude"},
            {"id": ids[3], "score": 2},
            {"id": ids[3], "score": 3},
            {"id": "0-0000000000000000", "score": 4},
        ]
        handler.reply(200, json.dumps({"scores": scores}).encode())

    server.behaviour = some
    values, faults = reward(server)(OUTPUTS, prompts(5))
    assert values == [1, None, None, None, None]
    assert dict(faults) == {
        "gave none": 1,
        "the server says: too  [31mrude": 1,
        "the reply has two scores for it": 1,
        "the reply has no score for it": 1,
    }


def test_the_answer_to_another_request_is_nobodys(server):
    def stale(handler, body):
        stale.kept = stale.kept or body
        lengths(handler, stale.kept)

    stale.kept = None
    server.behaviour = stale
    ask = reward(server)
    assert ask(["a"], prompts(1))[0] == [1]
    values, faults = ask(["bb"], prompts(1))
    assert values == [None]
    assert "none of the 1 ids" in next(iter(faults))


def test_a_row_that_cannot_be_sent_costs_no_other(server):
    odd = Prompt(id=9, source="s", text="t", fields={"tensor": torch.zeros(1)})
    values, faults = reward(server)(["a", "bb"], [odd, *prompts(1)])
    assert values == [None, 2]
    assert dict(faults) == {"cannot be sent: Object of type Tensor is not JSON serializable": 1}


def test_an_ill_server_is_left_alone_and_taken_back_without_a_restart(server):
    now = [0.0]
    breaker = Breaker(failures=2, pause=30, clock=lambda: now[0])
    rewards = Rewards({"http": reward(server, breaker=breaker, batch_size=1)})
    server.behaviour = says("", 500)
    assert not rewards(OUTPUTS, prompts(5)).scored.any()
    assert len(server.seen) == 4  # of 5 batches with 2 attempts each
    alone = "skipped after 2 failures in a row; retried every 30 s (reward.http.function.breaker)"
    assert {reason.partition("/score: ")[2]: n for reason, n in rewards.pop_faults().items()} == {
        "500 Internal Server Error, '\"\"'": 2,
        f"{alone}; the last: 500 Internal Server Error, '\"\"'": 3,
    }
    server.behaviour = lengths
    assert not rewards(OUTPUTS, prompts(5)).scored.any()
    now[0] = 31.0
    scores = rewards(OUTPUTS, prompts(5))
    assert scores.scored.all()
    assert scores.total.tolist() == [0, 1, 2, 3, 4]


def test_a_retry_that_succeeds_costs_nothing(server):
    server.script.append(says("", 503))
    assert reward(server)(OUTPUTS, prompts(5)) == ([0, 1, 2, 3, 4], {})


def test_the_token_is_sent_and_shown_nowhere(server, monkeypatch):
    monkeypatch.setenv("TANDEM_REWARD_TOKEN", TOKEN)

    def echoes(handler, body):
        [sample] = json.loads(body)["samples"]
        said = handler.headers["Authorization"]
        score = {"id": sample["id"], "score": None, "reason": said}
        handler.reply(200, json.dumps({"scores": [score]}).encode())

    server.behaviour = echoes
    ask = reward(server)
    _, faults = ask(["a"], prompts(1))
    assert server.seen[0][2]["Authorization"] == f"Bearer {TOKEN}"
    assert dict(faults) == {"the server says: Bearer <redacted>": 1}
    assert TOKEN not in f"{vars(ask)} {vars(ask.function)} {ask.function.endpoint!r}"


WHERE = "reward.http.function"
REFUSED = [  # key below the function, value, message
    ("url", "???", f"{WHERE}.url is not set: add {WHERE}.url=..."),
    ("url", "host:80", f"{WHERE}.url=host:80: expected http://host:port or https://..."),
    (
        "url",
        "http://me:pw@host",
        f"{WHERE}.url: an address must not contain credentials, ? or #; put the token into the "
        "environment variable that token_env names",
    ),
    ("limits.timeout", 0.0, f"{WHERE}.limits.timeout=0.0: must be positive"),
    ("retries.count", -1, f"{WHERE}.retries.count=-1: must not be negative"),
    ("retries.wait", 21.0, f"{WHERE}.retries.wait=21.0: must be between 0 and longest=20.0"),
    ("breaker.failures", 0, f"{WHERE}.breaker.failures=0: must be positive"),
]


@pytest.fixture(scope="module")
def composed():
    cfg = compose(["reward=http", f"{WHERE}.url=http://127.0.0.1:8123"])
    check(cfg)
    return cfg


@pytest.mark.parametrize(("key", "value", "said"), REFUSED)
def test_what_no_server_can_be_asked_with_is_refused_before_any_weight(composed, key, value, said):
    cfg = composed.copy()
    OmegaConf.update(cfg, f"{WHERE}.{key}", value)
    with pytest.raises(ConfigError) as raised:
        check(cfg)
    assert str(raised.value) == said


def test_a_misspelt_limit_is_answered_with_the_right_one():
    with pytest.raises(ConfigError, match=r"mean 'reward\.http\.function\.limits\.timeout'"):
        compose(["reward=http", f"{WHERE}.limits.timeou=3"])
