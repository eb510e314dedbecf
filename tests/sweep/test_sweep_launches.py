"""A sweep of processes with every kind of end: each ends alone, and missing ones are rerun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_sweep

HERE = Path(__file__).parent
LAUNCHERS = {
    "basic": (),
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "submitit": ("hydra/launcher=submitit_local",),
}
pytestmark = pytest.mark.system
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("joblib", "submitit")]


def begin(cwd: Path, values: str, launcher: str = "basic", *hydra: str) -> subprocess.Popen:
    toy = [sys.executable, str(HERE / "toy_sweep.py"), "sweep", values]
    command = [*toy, *LAUNCHERS[launcher], *hydra]
    return subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def sweep(tmp_path, monkeypatch, capfd):
    """(values, launcher, words for Hydra) -> the exit code and output of a whole sweep."""
    monkeypatch.chdir(tmp_path)

    def whole(values: str, launcher: str = "basic", *hydra: str) -> tuple[int, str]:
        capfd.readouterr()
        code = toy_sweep.main("sweep", values, *LAUNCHERS[launcher], *hydra)
        return code, "".join(capfd.readouterr())

    return whole


def rows(cwd: Path) -> dict[str, list[str]]:
    """Name of a run -> its cells in the table."""
    lines = (cwd / "sweep" / "sweep.md").read_text().splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if "do=" in line
    ]
    return {own[0]: own[1:] for own in cells if len(own) == 5}


def starts(cwd: Path, name: str) -> list[str]:
    return (cwd / "sweep" / name / "starts").read_text().splitlines()


@pytest.mark.parametrize("launcher", ["basic", *OTHERS])
def test_each_run_ends_alone_and_the_table_says_how(sweep, tmp_path, launcher):
    pickles = tmp_path / "sweep" / ".submitit"  # with the values that all runs share
    if launcher == "submitit":
        pickles.mkdir(parents=True, mode=0o755)
    code, said = sweep("finish,crash,guard,die,refuse", launcher, "+hydra.job.env_set.TOLD=it")
    assert code == 1, said
    assert (tmp_path / "sweep" / "do=finish" / "output.log").read_text() == "as finish, told it\n"
    table = rows(tmp_path)
    assert [table[f"do={x}"][0] for x in ("finish", "crash", "guard", "die", "refuse")] == [
        "finished", *(["failed"] * 4),
    ]  # fmt: skip
    assert table["do=finish"][2:] == ["0.750", ""]
    assert table["do=crash"][2:] == ["0.250", "ValueError: it broke"]
    assert table["do=guard"][3] == "stopped: every group ties"
    assert table["do=die"][3] == "killed by SIGKILL, which the system sends when memory runs out"
    assert table["do=refuse"][3] == "refused: unknown key 'lr': did you mean 'optimizer.lr'?"
    assert "1 finished, 4 failed, of 5 runs" in said
    assert f"python -m tandem compare {tmp_path}/sweep" in said
    assert pickles.exists() == (launcher == "submitit")
    assert launcher != "submitit" or not pickles.stat().st_mode & 0o077


def test_the_same_command_runs_what_is_missing_and_nothing_else(sweep, tmp_path):
    sweep("finish,crash,refuse,die")
    finished = tmp_path / "sweep" / "do=finish"
    before = {path: path.stat().st_mtime_ns for path in finished.iterdir()}
    (tmp_path / "mended").touch()
    code, said = sweep("finish,crash,refuse,die")
    assert code == 1, said
    assert {path: path.stat().st_mtime_ns for path in finished.iterdir()} == before
    assert [row[0] for row in rows(tmp_path).values()] == [
        "already finished", "finished", "failed", "finished",
    ]  # fmt: skip
    whole = ["seed=0", "do=refuse", f"run_dir='{tmp_path}/sweep/do=refuse'"]
    whole += [f"sweep_dir='{tmp_path}/sweep'", "hydra.mode=RUN"]
    assert (
        starts(tmp_path, "do=refuse") == [" ".join(whole)] * 2
    )  # no partial run was left to resume
    for name in ("do=crash", "do=die"):
        assert starts(tmp_path, name)[1:] == [f"resume='{tmp_path}/sweep/{name}'"]
    assert "output.log" in said and "to run what is missing (1)" in said


def test_more_values_run_the_new_ones_and_a_foreign_run_is_left_alone(sweep, tmp_path):
    assert sweep("one,two")[0] == 0
    foreign = tmp_path / "sweep" / "do=one" / "job.json"
    foreign.write_text(foreign.read_text().replace("seed=0", "seed=7"))
    code, said = sweep("one,two,three")
    assert code == 1, said
    assert [row[0] for row in rows(tmp_path).values()] == [
        "skipped", "already finished", "finished",
    ]  # fmt: skip
    assert "the folder holds another run: seed=7 do=one; set another sweep_dir" in said
    assert [len(starts(tmp_path, f"do={x}")) for x in ("one", "two", "three")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("basic", signal.SIGHUP),  # SIGTERM is that of the next test
        pytest.param("joblib", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_reaches_the_runs_and_the_same_command_goes_on(sweep, tmp_path, launcher, number):
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    process = begin(tmp_path, "finish,wait,last", launcher)
    signal.signal(signal.SIGHUP, inherited)
    wait_for(tmp_path / "waiting", process)
    wait_for(tmp_path / "sweep" / "do=finish" / "job.json", process)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert rows(tmp_path)["do=wait"][0] == "stopped", said
    assert not list((tmp_path / "sweep").glob(".stop*"))
    (tmp_path / "mended").touch()
    code, said = sweep("finish,wait,last", launcher)
    assert code == 0, said
    assert starts(tmp_path, "do=wait")[1:] == [f"resume='{tmp_path}/sweep/do=wait'"]


def test_two_launches_at_once_share_the_work(sweep, tmp_path):
    first = begin(tmp_path, "wait,other")
    wait_for(tmp_path / "waiting", first)
    code, said = sweep("wait,other")
    assert code == 75, said  # some runs are still missing
    assert [row[0] for row in rows(tmp_path).values()] == ["running", "finished"]
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert len(starts(tmp_path, "do=wait")) == len(starts(tmp_path, "do=other")) == 1


@pytest.mark.slow
def test_a_run_outlives_a_sweep_that_was_killed_and_is_not_started_twice(sweep, tmp_path):
    process = begin(tmp_path, "wait")
    wait_for(tmp_path / "waiting", process)
    process.kill()
    process.communicate()
    code, said = sweep("wait")
    assert code == 75 and "another launch is running it" in said
    pid = json.loads((tmp_path / "sweep" / "do=wait" / "job.json").read_text())["pid"]
    os.kill(pid, signal.SIGTERM)
    (tmp_path / "mended").touch()
    end = time.monotonic() + 30
    while sweep("wait")[0] == 75:
        assert time.monotonic() < end
    assert rows(tmp_path)["do=wait"][:1] == ["finished"]


def wait_for(path: Path, process: subprocess.Popen) -> None:
    while not path.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
