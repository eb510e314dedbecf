"""Whole runs: their files, and that interrupting one anywhere does not change its result."""

import json
import logging
import os
import random
import shutil
import signal
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import pytest
import torch
from processes import FORKED, end_of_child, spend
from records import GRPO
from torch.multiprocessing import ProcessExitedException
from toy_run import ITERATIONS, SETTINGS, Policy, expected_table, often, run, share_of_threes

from tandem import distributed, threads
from tandem.advantages.baselines import MovingAverage
from tandem.evaluation.settings import Answers
from tandem.record import jsonl
from tandem.record.checkpoint import find_newest_whole
from tandem.stop import Abandoned, Stop, command_to_resume, list_heard
from tandem.threads import ENDING
from tandem.training.callbacks import INTERRUPTED, Interrupt, Interrupted
from tandem.training.collect import Clock


@pytest.fixture(autouse=True)
def a_hangup_is_heard():
    """Restores SIGHUP, which nohup ignores."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    run(folder)
    return folder


def metrics(folder) -> list[dict]:
    return jsonl.read(folder / "metrics.jsonl")


def list_warnings(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("tandem")]


def assert_same_run(folder, straight) -> None:
    for log in ("metrics.jsonl", "evaluations.jsonl"):
        assert (folder / log).read_bytes() == (straight / log).read_bytes()
    assert torch.equal(expected_table(folder), expected_table(straight))
    names = [sorted(p.name for p in (f / "samples").iterdir()) for f in (folder, straight)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (folder / "samples" / name).read_bytes() == (
            straight / "samples" / name
        ).read_bytes()


def test_every_iteration_has_a_line_and_so_have_the_final_weights(straight):
    assert [line["iteration"] for line in metrics(straight)] == [*range(ITERATIONS + 1)]
    timing = jsonl.read(straight / "timing.jsonl")
    assert [line["iteration"] for line in timing] == [*range(ITERATIONS + 1)]
    totals = [line["time/total"] for line in timing]
    assert totals == sorted(totals)
    assert all(line["time/iteration"] > line["time/sample"] for line in timing[:-1])


def test_a_line_counts_the_samples_that_led_to_its_weights(straight):
    assert [line["samples"] for line in metrics(straight)] == [24 * i for i in range(7)]
    assert metrics(straight)[0]["tokens"] == 0


def test_evaluation_comes_before_training_every_so_often_and_at_the_end(straight):
    lines = metrics(straight)
    assert [line["iteration"] for line in lines if "eval/accuracy" in line] == [0, 2, 4, 6]
    assert [line["iteration"] for line in lines if "eval/pass@4" in line] == [0, 6]
    assert [line["iteration"] for line in lines if "reward/mean" in line] == [*range(6)]
    samples = sorted(p.name for p in (straight / "samples").iterdir())
    assert samples == [f"iteration_00000{i}.jsonl" for i in (0, 2, 4, 6)]
    rows = jsonl.read(straight / "samples" / samples[0])
    kinds = [row["kind"] for row in rows]
    assert kinds == ["greedy"] * 2 + ["eval"] * 2 + ["best"] * 4 + ["worst"] * 4
    assert rows[4]["reward"] > rows[-1]["reward"]


def test_the_newest_checkpoints_stay(straight):
    names = sorted(p.name for p in (straight / "checkpoints").iterdir())
    assert names == ["step_000004", "step_000006"]


def test_a_finished_run_can_be_resumed_and_evaluates_its_end_again(straight, tmp_path, caplog):
    again = tmp_path / "again"
    shutil.copytree(straight, again)
    module = run(again, resume=True)
    assert module.iteration == ITERATIONS
    assert_same_run(again, straight)
    assert not list_warnings(caplog)


def test_a_resumed_run_says_which_lines_are_gone_and_goes_on(straight, tmp_path, caplog):
    again = tmp_path / "again"
    shutil.copytree(straight, again)
    (again / "metrics.jsonl").write_text("")
    assert run(again, resume=True).iteration == ITERATIONS
    assert [line["iteration"] for line in metrics(again)] == [ITERATIONS]
    (said,) = list_warnings(caplog)
    assert said.startswith(f"{again}/metrics.jsonl lacks 6 of the 6 lines before iteration 6, the")
    assert "first for iteration 0 and the last for 5; the run continues without them" in said


def test_a_resumed_run_says_that_its_checkpoint_is_of_another_run(straight, tmp_path, caplog):
    again = tmp_path / "again"
    shutil.copytree(straight, again)
    path = again / "manifest.json"
    manifest = json.loads(path.read_bytes())
    own, manifest["id"] = manifest["id"], "another"
    path.write_text(json.dumps(manifest))
    run(again, resume=True)
    (said,) = list_warnings(caplog)
    assert said.startswith(f"{again}/checkpoints/step_000006 was written by another run (id {own} ")


def test_without_a_terminal_progress_is_a_few_lines_and_a_table(tmp_path, capsys):
    run(tmp_path)
    said = capsys.readouterr().out.splitlines()
    evaluated = [line for line in said if line.startswith("evaluating")]
    assert evaluated == [f"evaluating  6 prompts, after {i} of 6 iterations" for i in (0, 2, 4, 6)]
    first, last = (line for line in said if line[:2] in ("1/", "6/"))
    assert all(word in first for word in ("1/6  reward 0.", "accuracy 0.", "(at 0)", "tokens/s"))
    assert "6/6  reward 0." in last and "(at 4)" in last and " took " in last
    assert "accuracy_t0.5" in "".join(said)
    assert said[-1] == f"run directory: {tmp_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicious(Answers):
    def warning(self, first, now) -> str | None:
        gained = now["eval/reward"] - first["eval/reward"]
        return f"{first['iteration']} or {gained:.3f}" if gained else None


def test_a_warning_is_heard_at_each_evaluation_and_beside_the_closing_table(
    tmp_path, straight, caplog, capsys
):
    settings = Suspicious(**{own.name: getattr(SETTINGS, own.name) for own in fields(SETTINGS)})
    with caplog.at_level(logging.WARNING, logger="tandem"):
        run(tmp_path, evaluation=settings)
    assert_same_run(tmp_path, straight)
    rewards = {line["iteration"]: line.get("eval/reward") for line in metrics(tmp_path)}
    gains = {i: f"0 or {rewards[i] - rewards[0]:.3f}" for i in (2, 4, 6)}
    assert caplog.messages == [f"evaluation {i}: {said}" for i, said in gains.items()]
    assert f"\nwarning: {gains[6]}\n" in capsys.readouterr().out


# Reward calls: 6 + 24 + 12 in a full evaluation, 6 + 12 + 12 in others, 24 in an iteration.
MOMENTS = {"first evaluation": 10, "first iteration": 50, "evaluation 2": 100, "iteration 3": 160}


def signals_at(call: int, *numbers: signal.Signals):
    """A reward that signals the process in its n-th call."""
    calls = iter(range(10**6))

    def reward(output, prompt) -> float:
        if next(calls) == call:
            for number in numbers:
                os.kill(os.getpid(), number)
        return share_of_threes(output, prompt)

    return reward


@pytest.mark.parametrize(
    ("number", "call", "finished"),
    [
        # A run that must leave soon drops the samples of an iteration, but never its updates.
        *((signal.SIGTERM, *moment) for moment in zip(MOMENTS.values(), (0, 0, 2, 3), strict=True)),
        (signal.SIGUSR1, 160, 3),
        *((signal.SIGINT, *moment) for moment in zip(MOMENTS.values(), (0, 1, 2, 4), strict=True)),
        (signal.SIGHUP, 50, 1),
    ],
)
def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path, straight, number, call, finished):
    before = [signal.getsignal(n) for n in list_heard()]
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, reward=signals_at(call, number))
    assert ended.value.code == INTERRUPTED == 75
    assert [signal.getsignal(n) for n in list_heard()] == before
    assert find_newest_whole(tmp_path / "checkpoints").step == finished
    assert [line["iteration"] for line in metrics(tmp_path)] == [*range(finished)]
    run(tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def test_a_signal_that_is_repeated_within_a_second_is_one(tmp_path, straight, capfd):
    with pytest.raises(Interrupted):
        run(tmp_path, reward=signals_at(50, signal.SIGINT, signal.SIGINT, signal.SIGHUP))
    said = capfd.readouterr().err
    assert said.count("ending after this iteration") == 1
    how = f"go on with: {command_to_resume(tmp_path)}"
    assert f"stopped after iteration 1 of 6; {how}" in said
    run(tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def test_a_run_with_damaged_checkpoints_alone_is_not_begun_again(tmp_path, straight):
    with pytest.raises(Interrupted):
        run(tmp_path, reward=signals_at(50, signal.SIGINT))
    state, logs = tmp_path / "checkpoints" / "step_000001" / "state.json", read_logs(tmp_path)
    whole = state.read_bytes()
    state.write_text("{}")
    with pytest.raises(Stop, match=r"step_000001: state\.json has 2 bytes.*; restore one, or rem"):
        run(tmp_path, resume=True)
    assert read_logs(tmp_path) == logs
    state.write_bytes(whole)
    run(tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def read_logs(folder) -> list[bytes]:
    return [(folder / log).read_bytes() for log in ("metrics.jsonl", "evaluations.jsonl")]


@pytest.mark.parametrize(
    ("numbers", "ends"),
    [
        ([signal.SIGTERM], -signal.SIGTERM),
        ([signal.SIGHUP], 0),  # a terminal sends it to both: the first is the run's
        ([signal.SIGHUP, signal.SIGHUP], -signal.SIGHUP),
        ([signal.SIGINT], 0),
    ],
)
def test_a_run_does_not_hear_the_signals_of_a_child_that_a_reward_forks(capfd, numbers, ends):
    interrupt = Interrupt(SimpleNamespace())
    interrupt.on_train_start(SimpleNamespace(), SimpleNamespace(clock=Clock()))
    try:
        assert end_of_child(*numbers) == ends
    finally:
        interrupt.on_train_end(None, None)
    assert not interrupt()
    assert capfd.readouterr().err == ""


def test_an_error_closes_the_record_and_gives_the_signals_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        run(tmp_path, dies_at=3)
    assert signal.getsignal(signal.SIGTERM) == before
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize(("method", "saved"), [("complete", ["step_000003"]), ("notify", [])])
def test_a_run_out_of_memory_is_saved_before_an_update_alone(tmp_path, monkeypatch, method, saved):
    own = getattr(Policy, method)

    def fill(policy, *given):
        if policy.iteration == 3:
            raise torch.OutOfMemoryError
        return own(policy, *given)

    monkeypatch.setattr(Policy, method, fill)
    with pytest.raises(torch.OutOfMemoryError):
        run(tmp_path, evaluation=replace(SETTINGS, every=None), checkpoint_every=100)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == saved


def test_evaluating_more_often_does_not_touch_the_training(tmp_path, straight):
    run(tmp_path, evaluation=often())
    trained = [
        [{k: v for k, v in line.items() if not k.startswith("eval/")} for line in metrics(folder)]
        for folder in (tmp_path, straight)
    ]
    assert trained[0] == trained[1]
    evaluated = [line for line in metrics(tmp_path) if line["iteration"] % 2 == 0]
    assert evaluated == [line for line in metrics(straight) if line["iteration"] % 2 == 0]


@pytest.mark.system
def test_killed_at_any_moment_a_run_ends_as_if_nothing_had_happened(tmp_path, straight):
    moments = random.Random(0)
    *_, whole = spend(child_of(tmp_path / "whole"))  # CPU-seconds
    kills = runs = 0
    while kills < 6:
        folder, starts, runs = tmp_path / str(runs), 0, runs + 1
        while (child := child_of(folder, resume=starts > 0)) and starts < 100:
            starts += 1
            moment = moments.uniform(0.2, 1.2) * whole
            if not any(spent >= moment for spent in spend(child)):
                child.join()
                break
            child.kill()  # SIGKILL
            child.join()
            kills += 1
        assert child.exitcode == 0
        assert_same_run(folder, straight)


def child_of(folder, *, resume: bool = False):
    child = FORKED.Process(target=run, args=(folder,), kwargs={"resume": resume})
    child.start()
    return child


@pytest.mark.parametrize(("every", "finished"), [(1, 3), (2, 4)])
def test_after_an_update_a_run_leaves_at_once_only_where_a_checkpoint_of_before_lies(
    tmp_path, straight, monkeypatch, every, finished
):
    """A signal in the first update of iteration 3, with or without a checkpoint before it."""
    with monkeypatch.context() as patched:
        signal_at_backward(patched, 6)
        with pytest.raises(Interrupted):
            run(tmp_path, checkpoint_every=every)
    assert find_newest_whole(tmp_path / "checkpoints").step == finished
    with monkeypatch.context() as patched:
        signal_at_backward(patched, 0)
        with pytest.raises(Interrupted):
            run(tmp_path, checkpoint_every=every, resume=True)
    assert find_newest_whole(tmp_path / "checkpoints").step == finished  # it is on disk
    run(tmp_path, resume=True)
    assert_same_run(tmp_path, straight)


def signal_at_backward(patched, call: int) -> None:
    backwards = iter(range(10**6))

    def signalling(module, loss, *args):
        if next(backwards) == call:
            os.kill(os.getpid(), signal.SIGUSR1)
        loss.backward()

    patched.setattr("tandem.training.module.PostTraining.manual_backward", signalling)


class Signalling(MovingAverage):
    """Signals the process after the scores of the third iteration."""

    def forward(self, scores, rollout):
        advantages = super().forward(scores, rollout)
        if self.iterations == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return advantages


def test_scores_that_a_moving_average_has_seen_are_not_seen_again(tmp_path):
    """The average has already changed, so the iteration ends before the run does."""
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    run(straight, algorithm=replace(GRPO, advantage=MovingAverage(decay=0.5)))
    with pytest.raises(Interrupted):
        run(cut, algorithm=replace(GRPO, advantage=Signalling(decay=0.5)))
    run(cut, algorithm=replace(GRPO, advantage=MovingAverage(decay=0.5)), resume=True)
    assert_same_run(cut, straight)


def test_ranks_that_leave_together_wait_no_longer_for_rows_in_flight_than_one(monkeypatch):
    """With one rank the grace period begins at the signal, with several where all have stopped."""
    monkeypatch.setattr(threads, "GRACE", 0.0)
    checkpoints, trainer = SimpleNamespace(publish=waits), SimpleNamespace(is_global_zero=True)
    with pytest.raises(Abandoned):
        Interrupt(checkpoints).leave(trainer, None)
    ENDING.clear()


def waits(*_):
    ENDING.refuse_to_wait()
    raise AssertionError("it waits for ever")


@pytest.mark.system
def test_two_ranks_write_one_record_and_end_together(tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(straight, devices=2)
    with pytest.raises(ProcessExitedException, match="exit code 75"):
        run(stopped, devices=2, reward=signals_second_rank)
    assert find_newest_whole(stopped / "checkpoints").step in (0, 1)  # they leave in mid-iteration
    run(stopped, devices=2, resume=True)
    assert [line["iteration"] for line in metrics(straight)] == [*range(ITERATIONS + 1)]
    assert_same_run(stopped, straight)


seen = iter(range(10**6))


def signals_second_rank(output, prompt) -> float:
    if distributed.rank() == 1 and next(seen) == 40:
        os.kill(os.getpid(), signal.SIGTERM)
    return share_of_threes(output, prompt)
