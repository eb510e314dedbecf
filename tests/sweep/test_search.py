"""A search that is interrupted, fails and continues, on runs written to disk."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from sweep.written_trials import SPACE, Runs, go, near_1e_4

from tandem.config import ConfigError
from tandem.sweep import space
from tandem.sweep.search import JOURNAL

DISTRIBUTIONS = {
    "interval(0.1,0.5)": FloatDistribution(0.1, 0.5),
    "tag(log,interval(1e-6,1e-4))": FloatDistribution(1e-6, 1e-4, log=True),
    "int(interval(1,5))": IntDistribution(1, 5),
    "range(4,17,4)": IntDistribution(4, 16, step=4),
    "range(0.5,2.0,0.5)": CategoricalDistribution(["0.5", "1.0", "1.5"]),
    "grpo,rloo": CategoricalDistribution(["grpo", "rloo"]),
    "choice(4,8)": CategoricalDistribution(["4", "8"]),
}


@pytest.mark.parametrize(("written", "meant"), DISTRIBUTIONS.items())
def test_hydras_grammar_is_the_space(written, meant):
    part = OverridesParser.create().parse_override(f"x={written}")
    assert space.make_distribution(part) == meant


def test_a_number_is_written_so_that_a_folder_can_be_named_by_it():
    assert space.make_overrides({"++a": 1 / 3, "++b": 8, "++c": "x"}) == [
        "++a=0.333333",
        "++b=8",
        "++c=x",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "hydra/sweeper=search has nothing to search"),
        (["++seed=0,1"], "hydra/sweeper=search has nothing to search"),
        (["++a=interval(2,1)"], "a=interval(2,1): must be increasing"),
        (["++a=tag(log,interval(0,1))"], "must be increasing and positive"),
        (["++a=tag(ln,interval(1,2))"], "unknown tag 'ln'; the only tag is log"),
    ],
)
def test_a_space_that_is_none_is_one_line(arguments, said):
    with pytest.raises(ConfigError) as refused:
        space.read(arguments)
    assert said in str(refused.value)


def test_it_finds_what_is_best_and_says_of_how_many(tmp_path, capsys):
    runs = Runs(tmp_path, near_1e_4)
    go(runs, n_trials=25)
    rates = [float(row[0].partition("=")[2]) for row in runs.rows]
    assert len(rates) == 25 and all(1e-6 <= rate <= 1e-2 for rate in rates)
    top = min(rates, key=lambda rate: -near_1e_4({"optimizer.lr": rate}))
    said = capsys.readouterr().out
    assert f"best of k = 25 trials: optimizer.lr={top:.6g}, score" in said
    assert f"tandem select {tmp_path}" in said


def test_the_same_command_goes_on_and_chooses_as_if_it_had_not_been_cut_short(tmp_path):
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    for folder in (whole, parts):
        folder.mkdir()
    uncut = Runs(whole, near_1e_4)
    go(uncut, n_trials=14)
    first, second, third = (Runs(parts, near_1e_4) for _ in range(3))
    go(first, n_trials=5)
    go(second, n_trials=14)
    go(third, n_trials=14)
    assert first.rows + second.rows == uncut.rows
    assert third.rows == []


def test_a_failed_trial_ends_nothing_is_tried_again_and_counts_once(tmp_path, capsys):
    runs = Runs(tmp_path, near_1e_4, fails={2})
    go(runs, n_trials=3)
    assert len(runs.rows) == 3
    said = capsys.readouterr().out
    assert "trial 1 failed: optimizer.lr=" in said and "failed (it broke)" in said
    assert "best of k = 2 trials" in said
    again = Runs(tmp_path, near_1e_4)
    go(again, n_trials=3)
    assert again.rows == [runs.rows[1]]
    assert "best of k = 3 trials" in capsys.readouterr().out


def test_swept_seeds_are_the_replicates_of_a_trial(tmp_path, capsys):
    runs = Runs(tmp_path, lambda given: float(given["seed"]))
    go(runs, [*SPACE, "++seed=0,1,5"], n_trials=2)
    assert [row[1] for row in runs.rows] == ["++seed=0", "++seed=1", "++seed=5"] * 2
    assert len({row[0] for row in runs.rows}) == 2
    assert "score 2 (n = 3)" in capsys.readouterr().out


def test_a_stopped_launch_leaves_its_trial_open_and_the_next_one_finishes_it(tmp_path):
    runs = Runs(tmp_path, near_1e_4)
    runs.launch.stop_file.touch()
    go(runs)
    assert len(runs.rows) == 1
    runs.launch.stop_file.unlink()
    after = Runs(tmp_path, near_1e_4)
    go(after, n_trials=2)
    assert after.rows[0] == runs.rows[0] and len(after.rows) == 2


GROUPS = ["++swept/algorithm=grpo", "++algorithm/loss/at/algorithm/actor=dapo"]
ADDED = "+algorithm/loss@algorithm.actor"
TYPED = {"swept/algorithm": "algorithm", "algorithm/loss/at/algorithm/actor": ADDED}


def test_keys_are_shown_as_they_were_typed(tmp_path, capsys):
    """Hydra is given other names of groups, which a user could not repeat."""
    first, second = (Runs(tmp_path, lambda given: 0.5, spelled=TYPED) for _ in range(2))
    go(first, [f"{line},x" for line in GROUPS], n_trials=1)
    said = capsys.readouterr().out
    choice, added = (line.partition("=")[2] for line in first.rows[0])
    assert f"best of k = 1 trials: algorithm={choice} {ADDED}={added}, score" in said
    with pytest.raises(ConfigError) as refused:
        go(second, ["++swept/algorithm=ppo,x"], n_trials=1)
    assert f"another space: {ADDED}=dapo,x algorithm=grpo,x; set" in str(refused.value)


def test_another_search_in_the_same_folder_is_refused(tmp_path):
    go(Runs(tmp_path, near_1e_4), n_trials=1)
    assert (tmp_path / JOURNAL).is_file()
    for changes in ({"metric": "eval/reward"}, {"direction": "minimize"}):
        with pytest.raises(ConfigError, match="set another sweep_dir"):
            go(Runs(tmp_path, near_1e_4), n_trials=1, **changes)


TOY = Path(__file__).with_name("toy_sweep.py")
SEARCH = ("hydra/sweeper=search", "hydra.sweeper.n_trials=2")


def toy(cwd, values, *hydra):
    command = [sys.executable, str(TOY), "sweep", values, *hydra]
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.system
def test_hydra_hands_a_sweep_to_the_search_and_the_next_launch_tries_again_what_failed(tmp_path):
    code, said = toy(tmp_path, "crash,guard", *SEARCH)
    assert code == 1 and "no trial was completed" in said, said
    (tmp_path / "mended").touch()
    code, said = toy(tmp_path, "crash,guard", *SEARCH)
    assert code == 0 and "best of k = 2 trials" in said and "score 0.75 (n = 1)" in said, said


def test_a_search_that_cannot_be_is_refused_before_anything_runs(tmp_path):
    from tandem.sweep.launch import launch
    from tandem.sweep.words import parse_sweep

    refused = {
        ("optimizer.lr=interval(0,1)",): "interval() requires hydra/sweeper=search",
        ("hydra/sweeper=search", "seed=0,1"): "nothing to search",
        ("hydra/sweeper=search", "seed=0", "iterations=1,2", "hydra.sweeper.n_trials=0"): (
            "hydra.sweeper.n_trials=0: must be positive"
        ),
    }
    wrong = {
        "n_trials=abc": "hydra.sweeper.n_trials: expected int, got 'abc'",
        "n_trials=null": "hydra.sweeper.n_trials: expected int, got null",
        "n_trials=2.5": "hydra.sweeper.n_trials: expected int, got 2.5",
        "at_once=2.5": "hydra.sweeper.at_once: expected int, got 2.5",
        "seed=x": "hydra.sweeper.seed: expected int, got 'x'",
        "seed=-1": "hydra.sweeper.seed=-1: must not be negative",
        "metric=[a]": 'hydra.sweeper.metric: expected str or null, got ["a"]',
        "direction=up": "hydra.sweeper.direction: expected 'maximize' or 'minimize', got 'up'",
    }
    for word, said in wrong.items():
        refused["hydra/sweeper=search", "iterations=1,2", f"hydra.sweeper.{word}"] = said
    for words, said in refused.items():
        sweep = parse_sweep([*words, f"sweep_dir={tmp_path}/sweep"], multirun=True)
        with pytest.raises(ConfigError) as error:
            launch(sweep, ["train.py", "-m", *words])
        assert said in str(error.value)
    assert not (tmp_path / "sweep").exists()
