"""An OpenEnv server answers like an embedded environment; its faults cost its own episodes."""

import json
import threading
from functools import partial

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")

import torch
from faulty_server import says, sends
from faulty_server import serving as serving_http
from openenv_server import error, observation, serving
from small_language import questions
from worlds import Counting, make_environment

from tandem.config import ConfigError, check, compose
from tandem.environments import Move, Play, Said
from tandem.environments.openenv import Fields, OpenEnv
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request
from tandem.remote import Breaker, SessionLimits
from tandem.types import Prompt

TEXT = Fields(action="guess", observation="turns.-1.said", state="moves")
TOKEN = "canary-token-77c1"


def world(server, *, fields=TEXT, **options):
    return OpenEnv(url=server.url, fields=fields, **options)


def play_moves(server, texts, *, attempts=2, reset=None, **options):
    """One episode after these moves, which the environment has closed."""
    environment = make_environment(world(server, **options), attempts=attempts)
    play = Play(Prompt(id=0, source="x", text=">", fields={"reset": reset or {}}), key=5)
    environment.begin([play])
    for number, text in enumerate(texts, 1):
        if play.lost is None:
            environment.begin(environment.act([play], [Move(text=text, number=number, key=3)]))
    environment.close([play])
    return play


def test_an_episode_is_a_session_that_is_reset_stepped_and_closed():
    with serving() as server:
        play = play_moves(server, ["7"])
    assert (play.lost, play.said) == (None, Said.text("+", reward=0.0, over=False, state="1"))
    (told,) = server.sessions
    assert [one["type"] for one in told] == ["reset", "state", "step", "state", "close"]
    assert told[2]["data"] == {"guess": "7"}


def test_the_end_and_its_reward_are_those_of_the_server():
    with serving() as server:
        play = play_moves(server, ["7", "9"], reset={"turns": 2})
    assert (play.said.over, play.said.reward) == (True, 1.0)


def test_a_server_gives_the_rows_of_a_world_that_says_the_same():
    policy = LanguagePolicy(
        build=partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8)
    )

    def rows(one):
        sampling = Sampling(max_new_tokens=4)
        policy.load(Request(sampling=sampling, environment=make_environment(one)))
        prompts = questions()
        return policy.sample(prompts, 2, key=7, slots=range(len(prompts)), sampling=sampling)

    with serving() as server:
        got = rows(world(server))
    want = rows(Counting(turns=3))
    assert got.outputs == want.outputs and len(server.sessions) == len(got.outputs)
    for name in ("mask", "turn", "feedback", "state", "length", "behaviour_logp"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    assert torch.equal(got.sample.tokens, want.sample.tokens)


def test_equal_keys_are_equal_seeds_and_every_session_has_a_name_of_its_own():
    with serving() as server:
        environment = make_environment(world(server, reset={"turns": 3, "level": 2}))
        own = Prompt(id=0, source="x", text=">", fields={"reset": {"turns": 4}})
        plays = [Play(own, key=key) for key in (2**62 + 9, 2**62 + 9, 8)]
        environment.begin(plays)
        environment.close(plays)
    first, second, third = server.resets()
    assert first["seed"] == second["seed"] != third["seed"]
    assert all(0 <= one["seed"] < 2**31 for one in server.resets())
    assert all((one["turns"], one["level"]) == (4, 2) for one in server.resets())
    assert len({one["episode_id"] for one in server.resets()}) == 3


def test_a_row_whose_reset_is_null_has_no_arguments_of_its_own():
    with serving() as server:
        environment = make_environment(world(server, reset={"turns": 3}))
        play = Play(Prompt(id=0, source="x", text=">", fields={"reset": None}), key=5)
        environment.begin([play])
        environment.close([play])
    assert play.lost is None and server.resets()[0]["turns"] == 3


def test_servers_take_episodes_in_turn():
    with serving() as one, serving() as other:
        environment = make_environment(OpenEnv(url=[one.url, other.url], fields=TEXT))
        plays = [Play(Prompt(id=0, source="x", text=">"), key=key) for key in range(4)]
        environment.begin(plays)
        environment.close(plays)
    assert len(one.sessions) == len(other.sessions) == 2


def dies(connection, message, told):
    if message["type"] == "step":
        connection.socket.close()


def answers(kind, sent):
    return lambda connection, message, told: sent if message["type"] == kind else None


def shares_an_environment(connection, message, told):
    if message["type"] == "state" and len(told) > 2:
        return {"type": "state", "data": {"episode_id": "another's", "moves": 1}}


def is_full(connection, message, told):
    connection.send(json.dumps(error("CAPACITY_REACHED")))
    connection.close()


OTHER_FIELD = [{"loc": ["guess"], "msg": "Extra inputs", "type": "extra_forbidden"}]
FAULTS = {
    "dies": (dies, "the connection broke before the reply was complete; see environment.world.url"),
    "answers for another session": (
        shares_an_environment,
        "step answered for another session: episode_id has changed",
    ),
    "10 MB": (
        answers("step", observation("x" * 10_000_000)),
        "the reply exceeds 1048576 bytes; see environment.world.limits.max_reply_bytes",
    ),
    "no JSON": (
        answers("step", '{"type": '),
        "the reply of 9 characters is not a JSON object; see environment.world.url",
    ),
    "another kind": (
        answers("step", {"type": "state", "data": {}}),
        "expected 'observation', got 'state'",
    ),
    "no data": (answers("step", {"type": "observation"}), "observation has no data"),
    "raises": (
        answers("step", error("EXECUTION_ERROR")),
        "the server says EXECUTION_ERROR: it says no",
    ),
    "another field": (
        answers("step", {"type": "observation", "data": {"observation": {}}}),
        "observation has no turns.-1.said; see environment.world.fields.observation",
    ),
    "begins at the end": (
        answers("reset", observation("", done=True)),
        "reset gave an episode that is already over",
    ),
    "full": (
        is_full,
        "the server says CAPACITY_REACHED: it says no; each row of a rollout is a session: raise "
        "max_concurrent_envs of the server, or give more servers as environment.world.url",
    ),
    "takes no such action": (
        answers("step", error("VALIDATION_ERROR", errors=OTHER_FIELD)),
        "the server says VALIDATION_ERROR: guess: Extra inputs; see "
        "environment.world.fields.action",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_loses_the_episode_with_the_reason(fault):
    does, reason = FAULTS[fault]
    with serving(fault=does) as server:
        play = play_moves(server, ["7"], attempts=1)
    assert play.lost == f"{server.url}: {reason}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {"reward": float("nan"), "done": False},
            "act gave reward=nan, not a finite number up to 1e18",
        ),
        ({"reward": 1.0, "done": "no"}, "act gave over='no', not True or False"),
    ],
)
def test_a_reward_or_an_end_that_is_none_is_judged_as_that_of_any_world(data, reason):
    sent = observation("") | {"data": {**observation("")["data"], **data}}
    with serving(fault=answers("step", sent)) as server:
        assert play_moves(server, ["7"], attempts=1).lost == reason


def test_a_server_that_never_answers_costs_the_time_that_is_set():
    over = threading.Event()

    def never_answers(connection, message, told):
        if message["type"] == "step":
            over.wait(20)

    with serving(fault=never_answers) as server:
        play = play_moves(server, ["7"], attempts=1, limits=SessionLimits(timeout=0.3))
        over.set()
    said = "no complete reply within 0.3 s; see environment.world.limits.timeout"
    assert play.lost == f"{server.url}: {said}"


def test_an_episode_that_broke_is_begun_again_with_its_seed():
    with serving() as server:
        server.fault = lambda *asked: dies(*asked) if len(server.sessions) == 1 else None
        play = play_moves(server, ["7"])
    assert (play.lost, play.attempts, play.said.reward) == (None, 2, None)
    first, second = server.resets()
    assert first["seed"] == second["seed"]
    assert first["episode_id"] != second["episode_id"]


BAD_VALUE = [{"loc": ["guess"], "msg": "Input should be an integer", "type": "int_parsing"}]


@pytest.mark.parametrize(
    ("fields", "text", "said"),
    [
        (Fields(), "I guess 7", "The action is not a JSON object."),
        (Fields(), "[7]", "The action is not a JSON object."),
        (Fields(), '{"gess": 7}', "The action is not valid: guess: Extra inputs"),
        (TEXT, "x", "The action is not valid: guess: Input should be an integer"),
    ],
)
def test_an_action_that_is_none_is_the_mistake_of_the_policy_which_is_told(fields, text, said):
    errors = OTHER_FIELD if fields.action is None else BAD_VALUE
    refusal = answers("step", error("VALIDATION_ERROR", errors=errors))
    with serving(fault=refusal) as server:
        play = play_moves(server, [text], fields=fields)
    assert (play.lost, play.counts) == (None, {"tool_errors": 1})
    assert [one["content"] for one in play.said.messages] == [said]
    assert not play.said.over and len(server.sessions) == 1
    assert play.said.state == (None if fields.state is None else "0")  # as before the move


def test_without_fields_a_move_is_json_and_so_is_what_is_said():
    with serving() as server:
        play = play_moves(server, ['{"guess": "7", "sure": true}'], fields=Fields())
    assert server.sessions[0][2]["data"] == {"guess": "7", "sure": True}
    (message,) = play.said.messages
    assert json.loads(message["content"]) == observation("+")["data"]["observation"]
    assert play.said.state is None


def test_the_token_goes_to_the_server_and_stands_in_nothing_that_it_says(monkeypatch):
    monkeypatch.setenv("TANDEM_ENVIRONMENT_TOKEN", TOKEN)
    with serving(fault=answers("step", observation(f"you said {TOKEN}"))) as server:
        play = play_moves(server, ["7"], token_env="TANDEM_ENVIRONMENT_TOKEN")
    assert server.headers[0]["Authorization"] == f"Bearer {TOKEN}"
    assert play.said.messages[0]["content"] == "you said <redacted>"


def test_a_token_in_a_handshake_that_fails_is_not_shown(monkeypatch):
    monkeypatch.setenv("TANDEM_ENVIRONMENT_TOKEN", TOKEN)
    echoes = sends(b"", status=101, Connection=TOKEN)
    with serving_http(behaviour=echoes) as server:
        play = play_moves(server, [], attempts=1, token_env="TANDEM_ENVIRONMENT_TOKEN")
    said = "no connection (invalid Connection header: <redacted>); see environment.world.url"
    assert play.lost == f"{server.url}: {said}"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (
            sends(b"", status=302, Location="http://127.0.0.1:1/ws"),
            "redirects are not followed; give the final address as environment.world.url",
        ),
        (
            sends(b"", status=308, Location="ws://127.0.0.1:1/ws"),
            "redirects are not followed; give the final address as environment.world.url",
        ),
        (
            sends(b"no", status=401),
            "status 401 instead of a session; put the right token into the environment "
            "variable MINE",
        ),
        (sends(b"down", status=503), "status 503 instead of a session; see environment.world.url"),
    ],
)
def test_what_is_no_session_says_why(behaviour, said):
    with serving_http(behaviour=behaviour) as server:
        play = play_moves(server, [], attempts=1, token_env="MINE")
    assert play.lost == f"{server.url}: {said}"


def test_a_server_that_is_not_there_is_left_alone():
    with serving_http(behaviour=says({})) as server:
        url = server.url
    one = OpenEnv(url=url, breaker=Breaker(failures=2, pause=1000.0))
    plays = [Play(Prompt(id=0, source="x", text=">"), key=key) for key in range(3)]
    make_environment(one, attempts=1).begin(plays)
    assert all("no connection ([Errno 111]" in play.lost for play in plays[:2])
    assert "skipped after 2 failures in a row" in plays[2].lost
    assert plays[2].lost.endswith(f"; the last: {plays[1].lost.removeprefix(f'{url}: ')}")


OPENENV = ["environment=openenv", "reward=episode", "~recipe"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["environment.world.url=http://a:b@h"],
            "environment.world.url: an address must not contain cred",
        ),
        (["environment.world.url=h"], "environment.world.url=h: expected http://host:port"),
        (["environment.world.url=[]"], r"environment.world.url=\[\]: give the address"),
        (
            ["environment.world.url=http://h", "environment.world.limits.timeout=0"],
            "environment.world.limits.timeout=0.*: must be positive",
        ),
    ],
)
def test_what_can_be_asked_nothing_is_refused_with_its_key(words, said):
    with pytest.raises(ConfigError, match=said):
        check(compose([*OPENENV, *words]))


def test_the_package_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr("tandem.environments.openenv.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[openenv\]"'):
        check(compose([*OPENENV, "environment.world.url=http://127.0.0.1:1"]))
