"""Runs whose reward is hacked: they end or warn, and keep an earlier checkpoint."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from toy_run import SETTINGS, run, share_of_threes

from tandem.record import jsonl
from tandem.record.checkpoint import list_published
from tandem.record.finished import ENDED_EARLY, SOLVED
from tandem.rewards import Reward, groupwise
from tandem.settings.guards import Guards
from tandem.stop import Stop

EVALUATION = replace(SETTINGS, every=2, prompts=12, samples=16, pass_at=())
OPTIONS = {"evaluation": EVALUATION, "iterations": 16, "checkpoint_every": 1}
AGAINST = {"judge": Reward(lambda o, p: 1 - share_of_threes(o, p), weight=0.0)}


@groupwise
def near_a_sixth(outputs, prompt):
    """A judge that first rises, then falls: it prefers a share of threes near a sixth."""
    mean = sum(share_of_threes(output, prompt) for output in outputs) / len(outputs)
    return [-abs(mean - 1 / 6)] * len(outputs)


def test_a_run_ends_where_the_judge_turned_and_keeps_what_was_before(tmp_path):
    with pytest.raises(Stop) as ended:
        run(tmp_path, judges=AGAINST, guards=Guards(hacking="stop", judges=("judge",)), **OPTIONS)
    said = str(ended.value)
    assert "\n" not in said and "guards.hacking=stop ended the run" in said
    assert "since iteration 0 the trained reward rose (+" in said and "judge fell (-" in said
    assert "it fell from the start, before any checkpoint" in said
    last = jsonl.read(tmp_path / "metrics.jsonl")[-1]
    assert f"iteration {last['iteration']}: " in said
    assert last["eval/reward_judge"] == pytest.approx(1 - last["eval/reward_threes"])


def test_a_solved_run_that_ends_where_the_judge_turned_is_not_marked_as_solved(
    tmp_path, monkeypatch
):
    """A guard ended it, so it has no model."""
    turned = {3: SimpleNamespace(since=0)}  # iteration -> what is found
    name = "tandem.training.callbacks.evaluating.find_hacking"
    monkeypatch.setattr(name, lambda lines, *_: turned.get(lines[-1]["iteration"]))
    top = {"reward": lambda output, prompt: 1.0, "full": {"threes": 1.0}}
    guards = Guards(no_signal=3, hacking="stop", judges=("judge",))
    with pytest.raises(Stop, match=r"guards\.hacking=stop ended the run"):
        run(tmp_path, judges=AGAINST, guards=guards, **top, **OPTIONS)
    last = jsonl.read(tmp_path / "metrics.jsonl")[-1]
    assert last["iteration"] == 3 and last["eval/accuracy"] == 1
    assert not {SOLVED, ENDED_EARLY} & last.keys()


def test_a_run_that_goes_on_warns_and_keeps_the_good_checkpoint(tmp_path, caplog):
    judge = Reward(near_a_sixth, weight=0.0)
    with caplog.at_level(logging.WARNING, logger="tandem"):
        run(tmp_path, judges={"judge": judge}, guards=Guards(judges=("judge",)), **OPTIONS)
    told = [said for said in caplog.messages if "judge judge fell" in said]
    assert told and all("guards.hacking=stop would end the run" in said for said in told)
    lines = jsonl.read(tmp_path / "metrics.jsonl")
    judged = {
        line["iteration"]: line["eval/reward_judge"] for line in lines if "eval/reward" in line
    }
    best = max(judged, key=lambda iteration: (judged[iteration], iteration))
    assert 0 < best < 12
    assert [step for step, _ in list_published(tmp_path / "checkpoints")] == [best, 15, 16]
    assert f"the checkpoint of then is {tmp_path / 'checkpoints' / f'step_{best:06d}'}" in told[-1]


@pytest.mark.parametrize("value", ["end", "stop:0", "stop:", "warn:x"])
def test_a_guard_that_cannot_be_meant_is_refused(value):
    with pytest.raises(ValueError, match=r"guards\.hacking is warn, stop, stop:k"):
        Guards(hacking=value)


def test_a_guard_waits_for_as_many_evaluations_as_it_says():
    assert [Guards(hacking=way).hacking_patience for way in ("warn", "stop", "stop:5")] == [2, 2, 5]


def test_a_reward_that_nobody_calls_a_judge_accuses_nobody(tmp_path, caplog):
    """Shorter answers, or smaller files, may be intended."""
    with caplog.at_level(logging.WARNING, logger="tandem"):
        run(tmp_path, judges=AGAINST, guards=Guards(), **OPTIONS | {"iterations": 4})
    assert not [said for said in caplog.messages if "judge fell" in said]
