"""Runs that a guard ends: what they have trained is in a checkpoint, and a resumed run goes on."""

from dataclasses import replace
from itertools import count

import pytest
import torch
import wandb
from records import GRPO
from test_runs import assert_same_run, metrics
from toy_run import run, share_of_threes
from wandb_files import inspect, of_type

from tandem.advantages.baselines import MovingAverage
from tandem.contracts import declare
from tandem.record.checkpoint import find_newest_step, list_published
from tandem.record.wandb_mirror import Wandb
from tandem.settings.guards import Guards
from tandem.stop import Stop

RARE = {"checkpoint_every": 100}  # no checkpoint but the last
GRPO_AGAIN = replace(GRPO, loss=declare(reads={"old_logp"})(lambda batch: GRPO.loss(batch)))
AVERAGE = replace(GRPO, advantage=MovingAverage(decay=0.5))


class FailsIn:
    """A reward that raises in one iteration of six prompts, and from then on."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def __call__(self, output, prompt) -> float:
        if 100 * self.iteration <= prompt.id < 10**6:  # not of the evaluation
            raise RuntimeError("the disk of the reward is full")
        return share_of_threes(output, prompt)


def newest(folder) -> int | None:
    return find_newest_step(folder / "checkpoints")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    run(folder, **RARE)
    return folder


def test_failing_rewards_end_a_run_before_they_are_trained_on(tmp_path, straight):
    with pytest.raises(Stop, match="100% of the samples have no reward"):
        run(tmp_path, reward=FailsIn(3), **RARE)
    assert newest(tmp_path) == 3
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1, 2]
    run(tmp_path, resume=True, **RARE)
    assert_same_run(tmp_path, straight)


def test_a_run_that_a_guard_ends_in_its_first_iteration_has_nothing_to_keep(tmp_path):
    with pytest.raises(Stop, match="have no reward"):
        run(tmp_path, reward=FailsIn(0), **RARE)
    assert newest(tmp_path) is None


def test_an_average_forgets_the_scores_of_the_iteration_that_a_guard_ended(tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(straight, algorithm=AVERAGE)
    algorithm = replace(GRPO, advantage=MovingAverage(decay=0.5))
    with pytest.raises(Stop, match="have no reward"):
        run(stopped, algorithm=algorithm, reward=FailsIn(3), **RARE)
    assert newest(stopped) == 3
    run(stopped, algorithm=replace(GRPO, advantage=MovingAverage(decay=0.5)), resume=True)
    assert_same_run(stopped, straight)


def test_a_run_without_a_signal_keeps_its_last_iteration_and_its_line(tmp_path):
    alike = {"reward": lambda output, prompt: 0.5, **RARE}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(straight, guards=Guards(no_signal=99), **alike)
    with pytest.raises(Stop, match="in 3 iterations in a row all advantages were 0"):
        run(stopped, guards=Guards(no_signal=3), **alike)
    assert newest(stopped) == len(metrics(stopped)) == 3
    run(stopped, guards=Guards(no_signal=99), resume=True, **alike)
    assert_same_run(stopped, straight)


class Poisoned:
    """Rewards, and a loss that is NaN in one update of iteration 3."""

    def __init__(self, update: int) -> None:
        self.update, self.calls = update, count()
        self.begun = False

    def reward(self, output, prompt) -> float:
        self.begun = self.begun or 300 <= prompt.id < 10**6
        return share_of_threes(output, prompt)

    def loss(self, batch):
        poison = self.begun and next(self.calls) == self.update
        return GRPO.loss(batch) * (torch.nan if poison else 1)


@pytest.mark.parametrize(("update", "kept"), [(0, 3), (1, 2)])
def test_a_run_ends_before_an_update_that_is_not_finite(tmp_path, update, kept):
    """After the first update of an iteration only an earlier checkpoint is there."""
    straight, stopped, poisoned = tmp_path / "straight", tmp_path / "stopped", Poisoned(update)
    run(straight, algorithm=GRPO_AGAIN)
    declared = replace(GRPO, loss=declare(reads={"old_logp"})(lambda b: poisoned.loss(b)))
    with pytest.raises(Stop, match="is not finite"):
        run(stopped, algorithm=declared, reward=poisoned.reward, checkpoint_every=2)
    assert newest(stopped) == kept
    run(stopped, resume=True, algorithm=GRPO_AGAIN)
    assert_same_run(stopped, straight)


def test_an_update_that_is_skipped_is_not_counted_twice(tmp_path):
    """Two of a skipped iteration end the run, and a resumed one skips both."""
    poisoned, straight = Poisoned(0), tmp_path / "straight"
    poisoned.loss = lambda batch: GRPO.loss(batch) * (torch.nan if poisoned.begun else 1)
    algorithm = replace(GRPO, loss=declare(reads={"old_logp"})(lambda b: poisoned.loss(b)))
    options = {"algorithm": algorithm, "reward": poisoned.reward, "iterations": 4, **RARE}
    run(straight, guards=Guards(non_finite="skip:9"), **options)
    poisoned.begun, stopped = False, tmp_path / "stopped"
    with pytest.raises(Stop, match="is not finite"):
        run(stopped, guards=Guards(non_finite="skip:1"), **options)
    assert newest(stopped) == 3
    run(stopped, guards=Guards(non_finite="skip:9"), resume=True, **options)
    assert_same_run(stopped, straight)


def test_weights_that_are_not_finite_are_in_no_checkpoint(tmp_path):
    def schedule(iteration, iterations):
        return 1e30 if iteration == 3 else 1.0

    with pytest.raises(Stop, match="made weights that are not finite"):
        run(tmp_path, schedule=schedule, checkpoint_every=2)
    assert [step for step, _ in list_published(tmp_path / "checkpoints")] == [2]


def test_a_run_whose_samples_all_have_full_reward_ends_as_a_finished_one(tmp_path, capsys):
    top = {"reward": lambda output, prompt: 1.0, "full": {"threes": 1.0}}
    run(tmp_path, guards=Guards(no_signal=3), **top, **RARE)
    assert newest(tmp_path) == 3
    lines = metrics(tmp_path)
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["eval/accuracy"] == 1 and lines[-1]["guards/solved"] == 3
    assert "solved      every sample of 3 iterations has full reward" in capsys.readouterr().out


@pytest.mark.system
def test_a_run_that_a_guard_ended_has_failed_on_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    mirrors, tied = [Wandb(project="p", mode="offline")], lambda output, prompt: 0.5
    with pytest.raises(Stop):
        run(tmp_path / "run", mirrors=mirrors, reward=tied, guards=Guards(no_signal=1), **RARE)
    wandb.teardown()
    assert [end["exit_code"] for end in of_type("exit", inspect(tmp_path / "run"))] == [1]


@pytest.mark.parametrize(
    ("reward", "full"),
    [
        (lambda output, prompt: 0.5, {"threes": 1.0}),
        (lambda output, prompt: 1.0, {}),
        (lambda output, prompt: float(prompt.id >= 100), {"threes": 1.0}),  # not in the first
    ],
)
def test_samples_that_tie_below_the_full_reward_end_a_run_by_the_guard(tmp_path, reward, full):
    with pytest.raises(Stop, match="all advantages were 0"):
        run(tmp_path, guards=Guards(no_signal=3), reward=reward, full=full, **RARE)


@pytest.mark.parametrize("share", [0.0301, 0.0749, 0.125, 0.35, 0.475, 0.5, 0.96, 1.0])
def test_the_change_after_missing_rewards_admits_as_many_of_them(share):
    reasons = {"faulty: timed out": 1}
    with pytest.raises(Stop) as ended:
        Guards(max_missing_rewards=0.03).check_missing(share, reasons)
    key, _, value = ended.value.change.partition("=")
    assert key == "guards.max_missing_rewards" and share <= float(value) <= 1
    Guards(max_missing_rewards=float(value)).check_missing(share, reasons)
