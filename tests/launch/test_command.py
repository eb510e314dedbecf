"""The command `tandem`: its subcommands, its version, and an unknown word."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from inspect import signature
from multiprocessing import get_context
from pathlib import Path

import pytest

from tandem.__main__ import COMMANDS, main
from tandem.stop import end_when_told

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("word", COMMANDS)
def test_every_word_names_a_program_that_takes_arguments(word):
    module, first, says = COMMANDS[word]
    assert len(signature(importlib.import_module(module).main).parameters) == 1
    assert all(isinstance(text, str) for text in first) and says


def test_the_usage_lists_every_word(capsys):
    main([])
    said = capsys.readouterr().out
    assert all(f"  {word} " in said for word in COMMANDS)


def test_an_unknown_word_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "tandem trian: no such command; did you mean train?\n"


def test_the_version_is_that_of_the_package(capsys):
    main(["--version"])
    assert capsys.readouterr().out.startswith("Tandem 0.")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_ends_a_command_in_one_line(capfd, name):
    number = getattr(signal, name)

    def told() -> None:
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
        with end_when_told():
            os.kill(os.getpid(), number)
            signal.pause()

    child = get_context("fork").Process(target=told)
    child.start()
    child.join(10)
    assert child.exitcode == 75
    assert capfd.readouterr().err == f"\nstopped by {'Ctrl-C' if name == 'SIGINT' else name}\n"


@pytest.mark.system
def test_what_a_wheel_installs_has_the_script_that_starts_jobs_and_ranks(tmp_path):
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = table["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in map(Path, wheel["packages"]):
        shutil.copytree(ROOT / package, tmp_path / package.name)
    for source, place in wheel["force-include"].items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / place)
    code = "from tandem.launch.train import CONF; print(CONF.parent / 'train.py')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = {"cwd": tmp_path, "env": environment, "text": True}
    script = subprocess.check_output([sys.executable, "-c", code], **run).strip()
    assert Path(script).is_relative_to(tmp_path)
    assert "grpo" in subprocess.check_output([sys.executable, script, "dry_run=true"], **run)


@pytest.mark.slow
@pytest.mark.system
def test_training_by_the_command_is_training_by_the_script(tmp_path):
    line = [sys.executable, "-m", "tandem", "train", "dry_run=true", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "grpo" in done.stdout


@pytest.mark.slow
@pytest.mark.system
def test_the_ranks_of_a_run_are_started_by_the_command_as_by_the_script(tmp_path):
    words = [
        "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "iterations=1",
        "warm_start=null", "evaluation.every=null", "prompts_per_step=2", "group_size=2",
        f"run_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    line = [sys.executable, "-m", "tandem", "train", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "ranks" in done.stdout
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 1
