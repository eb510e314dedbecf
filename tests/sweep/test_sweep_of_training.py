"""A sweep of real training: one run crashes, one is killed, and a second call completes both."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.record.reading.runs import find, read

ROOT = Path(__file__).parents[2]
# A loss that raises or hangs in the second iteration until it is mended.
LOSS = """\
import time
from pathlib import Path

from tandem.losses.policy import reinforce
from tandem import register_policy_loss

calls = []


@register_policy_loss(zero_at_zero_advantage=True)
def brittle(batch, *, fault: int = 0):
    calls.extend([fault] * batch.logp.requires_grad)  # once in each update
    if len(calls) > 1 and not Path("mended").exists():
        if fault == 1:
            raise RuntimeError("it broke in its second update")
        if fault == 2:
            Path("hangs").touch()
            time.sleep(300)
    return reinforce(batch)
"""
COMMAND = (
    "-m", "plugins=[brittle]", "algorithm=reinforce", "algorithm/loss=brittle", "~recipe",
    "algorithm.loss.fault=0,1,2", "warm_start=null", "iterations=2", "prompts_per_step=4",
    "group_size=4", "num_minibatches=1", "evaluation.prompts=4", "evaluation.pass_at=[1,4]",
    "evaluation.every=2", "guards.no_signal=9", "reward=target_length", "checkpoints.every=1",
    "reward.target_length.function.target=5", "sweep_dir=sweep",
)  # fmt: skip


def begin(cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *COMMAND],
        cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def job_file(folder: Path) -> dict:
    return json.loads((folder / "job.json").read_text())


@pytest.mark.slow  # test_sweep_launches.py tests all of this with a quick program
@pytest.mark.system
def test_one_crashes_and_one_is_killed_and_the_same_command_completes_the_two(tmp_path):
    (tmp_path / "brittle.py").write_text(LOSS)
    whole, crashed, killed = (tmp_path / "sweep" / f"algorithm.loss.fault={i}" for i in range(3))
    first = begin(tmp_path)
    while not (tmp_path / "hangs").exists():
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.1)
    os.kill(job_file(killed)["pid"], signal.SIGKILL)
    said, _ = first.communicate(timeout=300)
    assert first.returncode == 1, said
    assert "1 finished, 2 failed, of 3 runs" in said
    assert ": RuntimeError: it broke in its second update\n" in said
    assert ": killed by SIGKILL, which the system sends when memory runs out\n" in said
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}

    (tmp_path / "mended").touch()
    second = begin(tmp_path)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert "2 finished, 1 already finished, of 3 runs" in said
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    assert [job_file(folder)["number"] for folder in (whole, crashed, killed)] == [1, 2, 2]
    runs = [read(folder) for folder in find([tmp_path / "sweep"])]
    assert len(runs) == 3 and all(run.is_finished for run in runs)
    histories = [(folder / "metrics.jsonl").read_bytes() for folder in (whole, crashed, killed)]
    assert len({*histories}) == 1  # once mended they are the same run, bit for bit
