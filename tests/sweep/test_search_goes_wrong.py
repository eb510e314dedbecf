"""A search with a second launch, a missing metric, or another experiment."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from sweep.written_trials import Runs, go, near_1e_4

from tandem.config import ConfigError
from tandem.sweep import status
from tandem.sweep.job import make_task
from tandem.sweep.locks import try_lock
from tandem.sweep.search import JOURNAL, LOCK
from tandem.sweep.trials import Asked, next_step


class Recorded(Runs):
    """Runs with a record, as if they had begun."""

    def __call__(self, rows, first):
        super().__call__(rows, first)
        for row in rows:
            folder = make_task(row, 0, self.launch).folder
            (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "iterations": 1}))
            (folder / "manifest.json").write_text(
                json.dumps({"starts": [{"code": {"commit": None}}]})
            )


def states(folder):
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    trials = optuna.load_study(study_name="search", storage=storage).get_trials()
    return [trial.state.name for trial in trials]


def test_a_second_launch_is_refused_and_the_first_one_loses_nothing(tmp_path, capsys):
    class Disturbed(Runs):
        def __call__(self, rows, first):
            with pytest.raises(ConfigError, match="another launch is searching in"):
                go(Runs(tmp_path, near_1e_4), n_trials=2)
            super().__call__(rows, first)

    go(Disturbed(tmp_path, near_1e_4), n_trials=2)
    assert states(tmp_path) == ["COMPLETE"] * 2
    go(Runs(tmp_path, near_1e_4), n_trials=2)  # no search is running any more
    assert "best of k = 2 trials" in capsys.readouterr().out


def test_a_trial_whose_run_outlived_its_launch_stays_open_until_that_has_ended(tmp_path, capsys):
    class Outlived(Runs):
        """Another process holds the first run."""

        def __call__(self, rows, first):
            super().__call__(rows, first)
            if first == 0:
                self.lock = status.lock_folder(make_task(rows[0], 0, self.launch).folder)
                assert self.lock.__enter__() is not None

    before = Outlived(tmp_path, near_1e_4)
    go(before, n_trials=2)
    assert states(tmp_path) == ["RUNNING", "COMPLETE"]
    assert "trial 0 stays open" in capsys.readouterr().out
    before.lock.__exit__(None, None, None)
    after = Runs(tmp_path, near_1e_4)
    go(after, n_trials=2)
    assert after.rows == before.rows[:1] and states(tmp_path) == ["COMPLETE"] * 2


def test_a_misspelt_metric_costs_one_trial_which_the_mended_command_takes_over(tmp_path, capsys):
    runs = Recorded(tmp_path, near_1e_4)
    with pytest.raises(ConfigError, match=r"=eval/acuracy: .* did you mean 'eval/accuracy'\?"):
        go(runs, n_trials=5, metric="eval/acuracy")
    assert len(runs.rows) == 1
    mended = Recorded(tmp_path, near_1e_4)
    go(mended, n_trials=2, metric="eval/accuracy")
    assert mended.rows[0] == runs.rows[0] and states(tmp_path) == ["COMPLETE"] * 2
    assert f"tandem select {tmp_path} metric=eval/accuracy" in capsys.readouterr().out


def test_a_trial_without_a_number_that_others_have_fails_and_says_which(tmp_path, capsys):
    runs = Recorded(tmp_path, lambda given: None if len(runs.rows) == 2 else 0.5)
    go(runs, n_trials=3, metric="eval/accuracy")
    assert states(tmp_path) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "has no value of eval/accuracy" in capsys.readouterr().out


def test_a_run_that_failed_before_it_wrote_anything_is_a_failed_trial(tmp_path):
    go(Runs(tmp_path, near_1e_4, fails={1}), n_trials=1, metric="eval/accuracy")
    assert states(tmp_path) == ["FAIL"]


def test_trials_of_another_experiment_are_no_trials_of_this_search(tmp_path):
    first, second = Runs(tmp_path, near_1e_4), Runs(tmp_path, near_1e_4)
    first.launch = replace(first.launch, shared=["iterations=50", "data.token=hidden"])
    go(first, n_trials=1)
    assert "hidden" not in (tmp_path / JOURNAL).read_text()
    second.launch = replace(second.launch, shared=["data.token=hidden", "iterations=100"])
    with pytest.raises(ConfigError, match=r"another rest of the command line: .*iterations=50"):
        go(second, n_trials=2)
    assert second.rows == []


TOY = Path(__file__).with_name("toy_sweep.py")


@pytest.mark.parametrize(
    ("metric", "direction", "said"),
    [
        (None, "maximize", "\n\n    tandem select 'a b'"),
        ("eval/pass@8", "maximize", "\n\n    tandem select 'a b' metric=eval/pass@8"),
        ("eval/accuracy", "minimize", "the highest eval/ score, not the lowest eval/accuracy"),
        ("actor/entropy", "maximize", "the highest eval/ score, not the highest actor/entropy"),
        ("reward/mean", "maximize", "the highest eval/ score, not the highest reward/mean"),
    ],
)
def test_the_next_step_chooses_what_was_found_or_says_that_it_does_not(metric, direction, said):
    asked = Asked(n_trials=1, at_once=1, seed=0, direction=direction, metric=metric)
    assert said in next_step(asked, "a b")
    assert ("python -m" in next_step(asked, "a b")) is ("python -m" in said)


@pytest.mark.system
def test_what_a_search_refuses_is_one_line(tmp_path):
    (tmp_path / "sweep").mkdir()
    with (tmp_path / "sweep" / LOCK).open("a") as file:
        assert try_lock(file)
        done = subprocess.run(
            [sys.executable, str(TOY), "sweep", "crash,guard", "hydra/sweeper=search"],
            cwd=tmp_path, text=True, capture_output=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("another launch is searching in ")
    assert not list(Path(tmp_path, "sweep").glob("*/starts"))
