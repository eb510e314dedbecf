"""A real OpenEnv server, installed in `build/openenv`, and a run that trains on its episodes."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")

import torch
from real_openenv import serving
from small_language import questions
from worlds import Counting, make_environment

import tandem
from tandem.environments import Move, Play
from tandem.environments.openenv import Fields, OpenEnv
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request
from tandem.types import Prompt

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("OPENENV_HOME", ROOT / "build/openenv"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not HOME.is_dir(), reason="no build/openenv: `make build/openenv/ready` installs it"
    ),
]
SESSIONS = 16
FIELDS = Fields(action="text", observation="text", state="step_count")
RUN = (
    "model=tiny_lm", "data=sort_letters", "environment=openenv", "reward=episode", "~recipe",
    "warm_start=null", "iterations=3", "prompts_per_step=2", "group_size=4", "num_minibatches=1",
    "evaluation.prompts=2", "evaluation.samples=1", "evaluation.pass_at=[1]", "guards.no_signal=9",
    "rollout.max_new_tokens=4", "trainer.accelerator=cpu", "environment.world.fields.action=text",
    "environment.world.fields.observation=text", "environment.world.fields.state=step_count",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(HOME, tmp_path_factory.mktemp("openenv") / "log", sessions=SESSIONS) as url:
        yield url


def begin(environment, count=1, **reset):
    prompt = Prompt(id=0, source="x", text=">", fields={"reset": reset})
    plays = [Play(prompt, key=5) for _ in range(count)]
    environment.begin(plays)
    return plays


def act(environment, play, text, number=1):
    environment.act([play], [Move(text=text, number=number, key=3)])
    environment.close([play])
    return play


def test_rows_are_those_of_an_embedded_world_that_says_the_same(server):
    policy = LanguagePolicy(
        build=partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8)
    )

    def rows(world):
        sampling = Sampling(max_new_tokens=4)
        policy.load(Request(sampling=sampling, environment=make_environment(world)))
        prompts = questions()
        return policy.sample(prompts, 2, key=7, slots=range(len(prompts)), sampling=sampling)

    want, got = rows(Counting(turns=3)), rows(OpenEnv(url=server, fields=FIELDS))
    assert got.outputs == want.outputs
    for name in ("mask", "turn", "feedback", "state", "length", "behaviour_logp"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name


def test_equal_keys_draw_alike(server):
    environment = make_environment(OpenEnv(url=server, fields=Fields(action="text")))
    plays = begin(environment, 2)
    environment.close(plays)
    drawn = [json.loads(play.said.messages[0]["content"])["drawn"] for play in plays]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        (FIELDS, "!", "the server says EXECUTION_ERROR: no such move"),
        (
            Fields(action="txt"),
            "a",
            "the server says VALIDATION_ERROR: text: Field required; txt: Extra inputs are not "
            "permitted; see environment.world.fields.action",
        ),
    ],
)
def test_its_faults_are_told_in_its_words(server, fields, text, reason):
    environment = make_environment(OpenEnv(url=server, fields=fields), attempts=1)
    (play,) = begin(environment)
    assert act(environment, play, text).lost == f"{server}: {reason}"


def test_an_action_that_is_too_long_is_the_mistake_of_the_policy(server):
    environment = make_environment(OpenEnv(url=server, fields=FIELDS))
    play = act(environment, *begin(environment), "a" * 401)
    said = "The action is not valid: text: String should have at most 400 characters"
    assert (play.lost, play.said.messages[0]["content"]) == (None, said)


def test_more_episodes_than_it_holds_are_lost_and_closed_ones_make_room_at_once(server):
    environment = make_environment(OpenEnv(url=server, fields=FIELDS), attempts=1)
    plays = begin(environment, SESSIONS + 1)
    assert [play.lost is None for play in plays] == [True] * SESSIONS + [False]
    assert "CAPACITY_REACHED" in plays[-1].lost
    environment.close(plays)
    again = begin(environment, SESSIONS)
    assert [play.lost for play in again] == [None] * SESSIONS
    environment.close(again)


def test_three_iterations_train_on_it(server, tmp_path):
    tandem.train(*RUN, f"environment.world.url={server}", f"run_dir={tmp_path / 'run'}")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    metrics = [one for one in map(json.loads, lines) if "environment/over" in one]
    assert len(metrics) >= 3
    assert all(one["environment/over"] == 1 for one in metrics)
    assert all(one["environment/turns_mean"] == 3 for one in metrics)
    assert all(one["environment/lost"] == 0 for one in metrics)
