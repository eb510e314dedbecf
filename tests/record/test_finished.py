"""A finished run reports that there is nothing left to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.config import ConfigError
from tandem.launch.command_line import nothing_left
from tandem.record.finished import completed_iterations

ROOT = Path(__file__).parents[2]
CONFIG = "seed: 0\niterations: 2\nevaluation:\n  every: 1\n"


@pytest.fixture
def run(tmp_path):
    for folder in ("checkpoints/step_000002", "model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "curves.png").touch()
    lines = [f'{{"iteration": {i}, "eval/accuracy": 0.{i + 1}}}\n' for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    return tmp_path


def test_it_is_finished_with_all_that_is_written_last(run):
    assert completed_iterations(run) == 2
    (run / "curves.png").unlink()
    assert completed_iterations(run) is None


def test_one_that_was_killed_is_not(run):
    (run / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1}\n')
    assert completed_iterations(run) is None
    assert completed_iterations(run / "nowhere") is None


def test_what_is_to_change_is_left_to_the_run(run):
    assert "2 of 2 iterations" in nothing_left([f"resume={run}"])
    assert nothing_left([f"resume={run}", "iterations=5"]) is None
    assert nothing_left([f"resume={run}", "evaluate=true"]) is None
    assert nothing_left(["seed=1"]) is None


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("metrics.jsonl", "{}", "line 1 is damaged .its iteration is None"),
        ("timing.jsonl", "3", "timing.jsonl: line 1 is damaged"),
        ("samples/iteration_000002.jsonl", None, "iteration_000002.jsonl is not a regular file"),
    ],
)
def test_what_cannot_be_read_of_it_is_one_line(run, name, line, said):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).mkdir() if line is None else (run / name).write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=said):
        nothing_left([f"resume={run}"])


def test_lines_without_times_are_no_summary_of_them(run):
    (run / "timing.jsonl").write_text('{"iteration": 2}\n')
    assert "2 of 2 iterations" in nothing_left([f"resume={run}"])


@pytest.mark.system
def test_the_command_says_so_before_heavy_imports(run):
    line = [sys.executable, "-X", "importtime", str(ROOT / "train.py"), f"resume={run}"]
    done = subprocess.run(line, cwd=run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "finished    2 of 2 iterations" in done.stdout and "accuracy" in done.stdout
    imported = {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}
    assert not imported & {"torch", "lightning", "transformers", "numpy"}
