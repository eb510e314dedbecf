"""The command `tandem`: its subcommands, its version, and an unknown word."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from inspect import signature
from multiprocessing import get_context
from pathlib import Path

import pytest
from processes import end_of_child

from tandem.__main__ import COMMANDS, main
from tandem.stop import TOLD, defer_signals, end_when_told, until_told

ROOT = Path(__file__).parents[2]
STOPPED = "\nstopped by SIGTERM\n"


@pytest.mark.parametrize("word", COMMANDS)
def test_every_word_names_a_program_that_takes_arguments(word):
    module, first, says = COMMANDS[word]
    assert len(signature(importlib.import_module(module).main).parameters) == 1
    assert all(isinstance(text, str) for text in first) and says


def test_the_usage_lists_every_word(capsys):
    main([])
    said = capsys.readouterr().out
    assert all(f"  {word} " in said for word in COMMANDS)


@pytest.mark.system
def test_no_help_imports_torch():
    """Of any command, all in one process."""
    code = (
        "import sys\n"
        "from contextlib import suppress\n"
        "from tandem.__main__ import COMMANDS, main\n"
        "for word in COMMANDS:\n"
        "    with suppress(SystemExit):\n"
        "        main([word, '--help'])\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr


def test_an_unknown_word_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "tandem trian: no such command; did you mean train?\n"


@pytest.mark.parametrize(
    ("word", "needed"),
    [
        ("sample", "the following arguments are required: run, prompt; for example: "),
        ("compare", "no runs: give run directories, or a folder that contains runs"),
        ("sweep", "give one folder: python -m tandem sweep runs/sweeps/latest"),
        ("select", "give the folder of one sweep: python -m tandem select runs/sweeps/latest"),
        ("engines", "gpus is missing; give GPU numbers such as gpus=4-7, or gpus=cpu:2"),
        ("serve", "reward is missing: choose one, for example reward=exact_match"),
    ],
)
def test_a_command_without_what_it_needs_says_so_in_one_line_and_ends_with_2(word, needed, capsys):
    with pytest.raises(SystemExit) as ended:
        main([word])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(needed)


@pytest.mark.parametrize("word", COMMANDS)
def test_help_is_no_error(word, capsys):
    with suppress(SystemExit):
        main([word, "--help"])
    out, err = capsys.readouterr()
    assert out and not err


def test_the_version_is_that_of_the_package(capsys):
    main(["--version"])
    assert capsys.readouterr().out.startswith("Tandem 0.")


def exit_code_of(body) -> int:
    """The exit code of a process that handles every signal like a command in a terminal."""

    def heard() -> None:
        for number in TOLD:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        body()

    child = get_context("fork").Process(target=heard)
    child.start()
    child.join(10)
    return child.exitcode


@pytest.mark.parametrize("resumable", [True, False])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_ends_a_command_in_one_line(capfd, name, resumable):
    number = getattr(signal, name)

    def told() -> None:
        with end_when_told(resumable=resumable):
            os.kill(os.getpid(), number)
            signal.pause()

    assert exit_code_of(told) == (75 if resumable else 128 + number)
    assert capfd.readouterr().err == f"\nstopped by {'Ctrl-C' if name == 'SIGINT' else name}\n"


@pytest.mark.parametrize("block", [end_when_told, until_told])
def test_the_signals_of_a_forked_child_are_its_own(capfd, block):
    """Such as a worker of a data plugin, or of a reward that is served."""

    def told() -> None:
        with block():
            assert end_of_child(signal.SIGTERM) == -signal.SIGTERM

    assert exit_code_of(told) == 0
    assert capfd.readouterr().err == ""


def test_an_import_cannot_swallow_ctrl_c(capfd):
    """Some imports catch it, such as numpy's, which then recurses endlessly."""

    def told() -> None:
        with end_when_told(), suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)

    assert exit_code_of(told) == 130
    assert capfd.readouterr().err == "\nstopped by Ctrl-C\n"


def test_a_block_of_files_is_written_whole_before_a_signal_counts(tmp_path):
    def told() -> None:
        with end_when_told(), defer_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "table").touch()

    assert exit_code_of(told) == 143
    assert (tmp_path / "table").exists()


def test_the_first_signal_lets_a_server_end_and_the_second_ends_it_at_once(capfd):
    def told() -> None:
        with end_when_told():
            with until_told():
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            print("draining", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()

    assert exit_code_of(told) == 130
    assert capfd.readouterr() == ("draining\n", "\nstopped by Ctrl-C\n")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("end_when_told(), until_told()", 0, ""),
        ("end_when_told(resumable=True)", 75, "\nstopped by Ctrl-C\n"),
    ],
)
def test_ctrl_c_while_python_ends_keeps_the_exit_code(command, code, said):
    program = f"""
import atexit, os, signal
from tandem.stop import end_when_told, until_told
atexit.register(os.kill, os.getpid(), signal.SIGINT)  # the first of these is the last that is run
signal.signal(signal.SIGINT, signal.default_int_handler)
with {command}:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("word", ["estimate=true", "dry_run=true", "iterations=1"])
def test_only_a_run_that_can_be_resumed_ends_with_the_code_for_it(word):
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), word], stderr=subprocess.PIPE, text=True
    )
    time.sleep(1)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (75 if word == "iterations=1" else 143, STOPPED)


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


def test_a_python_without_the_package_is_told_how_to_install_it():
    bare = [sys.executable, "-S", "-E", str(ROOT / "train.py")]  # without site-packages
    done = subprocess.run(bare, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"No module named 'tandem' for {sys.executable}; run `make train`, then "
        "`source .venv/bin/activate`\n"
    )
