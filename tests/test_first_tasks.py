"""The page of first tasks: its files and commands, as written, with fewer iterations."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gate import each

import tandem
from tandem.config import check, compose

pytestmark = pytest.mark.usefixtures("unregistered")

PAGE = Path(__file__).parents[1] / "docs" / "first_tasks.md"
FILES = re.compile(r"^`([\w.]+)`[^\n]*:\n\n```python\n(.*?)^```$", re.M | re.S)
COMMANDS = re.compile(r"^ {4}(tandem|python) (.*)$", re.M)
FEWER = (
    "warm_start=null", "iterations=2", "prompts_per_step=4", "group_size=4", "num_minibatches=1",
    "evaluation.every=2", "evaluation.prompts=4", "evaluation.samples=1", "evaluation.pass_at=[1]",
    "guards.no_signal=9",
)  # fmt: skip
# Untrained weights sort no letters and paint no shapes: these rewards differ within a group.
SCORED = ("reward=target_length", "reward.target_length.function.target=5")
PICTURES = ("reward=jpeg_compressibility", "rollout.steps=3")


def tasks() -> dict[str, str]:
    """Heading -> the text below it."""
    _, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return dict(section.split("\n", 1) for section in sections)


TASKS = tasks()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with all files of the page."""
    for text in TASKS.values():
        for name, code in FILES.findall(text):
            (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def shortened(line: str) -> list[str]:
    """A command with fewer iterations, and a reward that untrained weights raise if it has none."""
    words = shlex.split(line)
    scored = PICTURES if "model=tiny_flow" in words else SCORED
    fewer = FEWER if any(word.startswith("reward=") for word in words) else FEWER + scored
    keys = {word.partition("=")[0] for word in fewer}
    return [word for word in words if word.partition("=")[0] not in keys] + [*fewer]


def test_there_are_five_tasks_with_commands_of_their_own():
    assert len(TASKS) == 5
    assert all(COMMANDS.search(text) for text in TASKS.values())


@pytest.mark.parametrize("name", each(2, [*TASKS][:4]))
def test_a_part_of_the_page_is_trained_by_its_commands(name, folder):
    text, runs = TASKS[name], 0
    for program, line in COMMANDS.findall(text):
        if program == "python":
            subprocess.run([sys.executable, *shlex.split(line)], check=True)
            continue
        check(compose(shlex.split(line)[1:]))
        run_dir = folder / f"run{runs}"
        tandem.train(*shortened(line)[1:], f"run_dir={run_dir}")
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        trained = [line for line in lines if "optim/grad_norm" in line]
        assert [line["reward/missing"] for line in trained] == [0, 0]
        runs += 1
    assert runs == text.count("tandem train")


@pytest.mark.slow
def test_the_comparison_of_the_page_is_run_and_judged(folder):
    program = [sys.executable, "-m", "tandem"]
    (_, sweep), (_, compare) = COMMANDS.findall(TASKS[[*TASKS][4]])
    subprocess.run([*program, *shortened(sweep)], check=True)
    line = [*program, *shlex.split(compare)]
    told = subprocess.run(line, check=True, capture_output=True, text=True)
    assert "fading" in told.stdout and "n = 3" in told.stdout
    assert (folder / "report" / "report.html").exists()
