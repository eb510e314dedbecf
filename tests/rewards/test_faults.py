"""A fault of a reward costs only its own samples, is counted, and is listed in docs/rewards.md."""

import sys

import pytest
import torch
from faults import FAULTS, PAGE, page
from ladder import FEW
from torch.testing import assert_close

import tandem
from tandem.record import jsonl
from tandem.rewards import Reward, Rewards
from tandem.settings.guards import Stop
from tandem.types import Prompt


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.does)
def test_a_fault_has_the_outcome_that_is_documented(fault):
    scores, faults = fault.scores()
    want = torch.tensor([0.0 if score is None else score for score in fault.gives])
    assert scores.scored.tolist() == [score is not None for score in fault.gives]
    assert_close(scores.total, want)
    assert scores.parts["fine"].tolist() == [10.0] * 4
    assert faults == ({} if fault.reason is None else {f"odd: {fault.reason}": fault.count})


def test_the_table_is_that_of_the_faults():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make faults`"


FAULTY = """
import threading

from tandem import register_reward
from tandem.rewards import batched


@register_reward
def faulty(output, prompt, *, every: int, how: str):
    if prompt.id % every:
        return float(output.count("a"))
    return {"raise": lambda: 1 / 0, "hang": threading.Event().wait}[how]()


@register_reward
@batched
def short(outputs, prompts):
    return [1.0]
"""
QUICK = (
    *FEW,
    "warm_start=null", "iterations=2", "prompts_per_step=6", "group_size=2", "num_minibatches=1",
    "evaluation.every=null", "guards.no_signal=9", "plugins=[faulty_rewards]",
    "+model.build.hidden_size=32", "+model.build.num_layers=1", "data/curriculum=uniform",
)  # fmt: skip


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "faulty_rewards.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)

    def train(*overrides):
        tandem.train(*QUICK, f"run_dir={tmp_path / 'run'}", *overrides)
        return jsonl.read(tmp_path / "run" / "metrics.jsonl")

    return train


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "faulty: raised ZeroDivisionError: 'division by zero'"),
        ("hang", "faulty: timed out"),
    ],
)
def test_a_run_goes_on_without_the_samples_of_a_fault_and_counts_them(train, caplog, how, reason):
    told = ["reward=[faulty,length]", f"reward.faulty.function.how={how}"]
    told += ["reward.faulty.function.every=3", "reward.faulty.timeout=0.05"]
    lines = train(*told, "guards.max_missing_rewards=1")
    known = [line for line in lines if "reward/missing" in line]
    assert len(known) == 2
    assert sum(line["reward/missing"] for line in known) > 0
    for line in known:
        assert line.get("reward/faults", 0) == pytest.approx(12 * line["reward/missing"])
        assert line["reward/length/mean"] == 0  # of the samples with a score
    assert f"x {reason}" in caplog.text


def test_an_evaluation_alone_gives_the_reasons_of_missing_scores_of_judges_too(train, caplog):
    told = ["reward=[faulty,short]", "reward.faulty.function.how=raise", "reward.short.weight=0"]
    told += ["reward.faulty.function.every=3", "evaluation.prompts=3", "evaluation.pass_at=[]"]
    train("evaluate=true", *told)
    (said,) = [found.message for found in caplog.records if "missing scores" in found.message]
    assert said.startswith("evaluation 0: missing scores: ")
    assert "x faulty: raised ZeroDivisionError: 'division by zero'" in said
    assert "x short: raised ValueError: 'gave 1 numbers for 12 samples'" in said


def test_a_run_whose_rewards_fail_too_often_stops_and_says_why(train):
    with pytest.raises(Stop, match=r"100% of the samples have no reward \(12 x short: raised Val"):
        train("reward=short")


def test_a_reward_that_takes_the_output_of_the_run_ends_it(monkeypatch):
    def mute(output, prompt):
        sys.stdout = None
        return 1.0

    monkeypatch.setattr(sys, "stdout", sys.stdout)  # given back after the test
    judged = Rewards({"mute": Reward(mute)})
    with pytest.raises(Stop, match=r"a reward \(mute\) closed sys.stdout or set it to None"):
        judged(["a"], [Prompt(id=0, source="toy", text="?")])
    assert not sys.stdout.closed
