"""Whole runs with an environment."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from ladder import FEW
from safetensors.torch import load_file

import tandem
from tandem.environments import environment
from tandem.stop import Stop

QUICK = (
    "warm_start=null", "iterations=2", "prompts_per_step=4", "group_size=4", "num_minibatches=2",
    "evaluation.prompts=4", "evaluation.pass_at=[]", "evaluation.every=2", "guards.no_signal=9",
    "optimizer.lr=1e-3",
)  # fmt: skip
SCORED = ("reward=target_length", "reward.target_length.function.target=5")
MAZE = (
    "data=maze", "data.mazes=20", "data.held_out=2", "data.demonstrations=16", "~recipe",
    "rollout.max_new_tokens=2", "plugins=[coin]", "reward=coin",
)  # fmt: skip


def train(folder, *words):
    tandem.train(*QUICK, *words, f"run_dir={folder}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, load_file(folder / "model" / "model.safetensors")


@pytest.mark.slow
def test_a_world_of_one_move_changes_no_metric_and_no_weight_of_a_run(tmp_path):
    """Bit for bit; only the metrics of the environment are added."""
    want, weights = train(tmp_path / "alone", *FEW, *SCORED)
    played = ("plugins=[one_move]", "environment=one_move")
    got, moved = train(tmp_path / "played", *FEW, *SCORED, *played)
    ours = [{k: x for k, x in line.items() if "environment/" not in k} for line in got]
    assert ours == want
    assert got[0]["environment/over"] == 1
    assert all(torch.equal(weight, moved[name]) for name, weight in weights.items())


@pytest.mark.slow
def test_seconds_of_the_evaluation_are_not_those_of_the_iteration(tmp_path, monkeypatch):
    """On a clock that counts its readings; only the first of the iterations is evaluated."""
    readings = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(environment, "time", readings)
    played = ("plugins=[one_move]", "environment=one_move")
    train(tmp_path / "played", *FEW, *SCORED, *played)
    lines = (tmp_path / "played" / "timing.jsonl").read_text().splitlines()
    first, second = [json.loads(line)["time/environment"] for line in lines[:2]]
    assert first == second > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dpo_online", "sft", "dapo", "remax", "rloo"])
def test_algorithms_of_answers_train_episodes(algorithm, tmp_path):
    """From random weights, which walk into walls for eight turns."""
    own = {"sft": ("group_size=1",), "dapo": ("algorithm.truncation_handling.limit=16",)}
    alone = own.get(algorithm, ())
    words = (*MAZE, f"algorithm={algorithm}", "num_minibatches=1", *alone)
    lines, _ = train(tmp_path / "run", *words)
    own = [line for line in lines if "optim/grad_norm" in line]
    assert algorithm == "sft" or own[0]["environment/turns_mean"] > 4
    assert len(own) == 2 and all(line["optim/grad_norm"] > 0 for line in own)


@pytest.mark.slow
def test_an_engine_with_a_copy_of_the_weights_plays_what_our_own_loop_does(tmp_path):
    """Wave by wave, through the calls that every engine supports."""
    engine = ("plugins=[coin,experiments.bring_your_own.rollout_engine]", "rollout=copying")
    own, _ = train(tmp_path / "own", *MAZE)
    got, _ = train(tmp_path / "copied", *MAZE, *engine)
    assert [x["reward/mean"] for x in got[:2]] == [x["reward/mean"] for x in own[:2]]
    assert got[0]["environment/turns_mean"] == own[0]["environment/turns_mean"] > 4


@pytest.mark.slow
def test_a_run_in_whose_world_too_much_is_lost_stops_with_the_reasons(tmp_path):
    """Lost episodes are missing rewards, and their reasons are counted."""
    with pytest.raises(Stop, match="environment: begin raised ValueError"):
        train(tmp_path / "run", *FEW, "environment=hilo", "reward=episode")
