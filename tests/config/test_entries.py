"""A command line may add entries to a mapping whose names a user chooses, and to no other."""

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, compose

GYMNASIUM = "environment=gymnasium environment.world.id=FrozenLake-v1"
OPENENV = "environment=openenv environment.world.url=http://127.0.0.1:8000"
OPTIONS, RESET = "environment.world.options", "environment.world.reset"
TOOLS, BODY = "environment.world.functions", "reward.judge.function.chat.body"


def value(line, key):
    return OmegaConf.to_container(OmegaConf.select(compose(line.split()), key), resolve=False)


@pytest.mark.parametrize(
    ("line", "key", "added"),
    [
        (f"{GYMNASIUM} +{OPTIONS}.render_mode=ansi", OPTIONS, {"render_mode": "ansi"}),
        (f"{GYMNASIUM} ++{OPTIONS}.render_mode=ansi", OPTIONS, {"render_mode": "ansi"}),
        (f"{GYMNASIUM} {OPTIONS}={{render_mode:ansi}}", OPTIONS, {"render_mode": "ansi"}),
        (f"{OPENENV} +{RESET}.task=7", RESET, {"task": 7}),
        (f"{OPENENV} {RESET}={{task:7}}", RESET, {"task": 7}),
        ("data=reasoning_gym +data.difficulty.max_terms=3", "data.difficulty", {"max_terms": 3}),
        (f"reward=judge +{BODY}.top_p=0.9", BODY, {"top_p": 0.9}),
        (f"reward=judge {BODY}={{top_p:0.9}}", BODY, {"top_p": 0.9}),
        ("environment=tools +environment.world.functions.mine=null", TOOLS, {"mine": None}),
    ],
)
def test_an_entry_is_added_beside_those_that_are_there(line, key, added):
    choice = line.split()[0]
    assert value(line, key) == value(choice, key) | added


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{GYMNASIUM} {OPTIONS}.render_mode=ansi", f"write +{OPTIONS}.render_mode=ansi"),
        (f"reward=judge {BODY}.temprature=1", f"did you mean '{BODY}.temperature'?"),
        (f"{GYMNASIUM} +{OPTIONS}._target_=os.system", f"unknown key '{OPTIONS}._target_'"),
        (f"{GYMNASIUM} {OPTIONS}={{_target_:os.system}}", f"unknown key '{OPTIONS}._target_'"),
        (f"{GYMNASIUM} ~{OPTIONS}.render_mode", f"unknown key '{OPTIONS}.render_mode'"),
        (f"{OPENENV} +environment.world.breaker.pauze=1", "did you mean 'environment.world.break"),
        (f"{OPENENV} environment.world.breaker={{pauze:1}}", "did you mean 'environment.world.bre"),
        ("reward=judge +reward.judge.function.chat.limits.conect=1", "limits.connect'?"),
        ("data=reasoning_gym +data.wording.chta=true", "did you mean 'data.wording.chat'?"),
        ("+callbacks.mine={_target_:os.system}", "unknown key 'callbacks.mine'"),
        ("+choices.x=1", "+choices.x=1: a run fills it in by itself; leave it out"),
    ],
)
def test_any_other_new_key_is_refused(line, message):
    with pytest.raises(ConfigError) as refused:
        compose(line.split())
    assert message in str(refused.value) and "\n" not in str(refused.value)
