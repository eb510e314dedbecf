"""kill -9 at any moment, then resume=: not a bit differs from a run that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

ROOT = Path(__file__).parents[1]
RUN = (
    # Another seed than the default, a reference and a warm start: all must be found again.
    "seed=1",
    "warm_start=['algorithm=sft','iterations=2']",
    "algorithm.kl.coef=0.1", "iterations=10", "prompts_per_step=16", "group_size=8", "epochs=2",
    "num_minibatches=2", "reward=target_length", "reward.target_length.function.target=5",
    "evaluation.every=4", "evaluation.prompts=32", "evaluation.pass_at=[1,8]",
    "checkpoints.every=2", "optimizer.lr=1e-3",
)  # fmt: skip


def start(*overrides: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "train.py", *overrides],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> None:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said


def tensors(folder: Path) -> dict[str, bytes]:
    with safe_open(folder / "model" / "model.safetensors", "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> tuple[Path, float]:
    """A run that was left alone, and how long it trained."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    process = start(*RUN, f"run_dir={folder}")
    began = wait_for(folder / "manifest.json", process)
    finish(process)
    return folder, time.monotonic() - began


def wait_for(path: Path, process: subprocess.Popen) -> float:
    while not path.exists() and process.poll() is None:
        time.sleep(0.02)
    return time.monotonic()


def kill_and_resume(folder: Path, moment: float) -> bool:
    """Whether the kill came before the end."""
    process = start(*RUN, f"run_dir={folder}")
    wait_for(folder / "manifest.json", process)
    time.sleep(moment)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(f"resume={folder}"))
    return alive


@pytest.mark.system
@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=pytest.mark.slow)], ids=["3 kills", "20 kills"]
)
def test_a_killed_run_resumes_to_the_same_bits(straight, tmp_path, kills):
    whole, seconds = straight
    moments = random.Random(kills)
    alive = []
    for number in range(kills):
        folder = tmp_path / str(number)
        alive.append(kill_and_resume(folder, moments.uniform(0, 0.9) * seconds))
        same = (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
        assert same, f"kill {number}: another history"
        assert tensors(folder) == tensors(whole), f"kill {number}: other weights"
    assert sum(alive) > kills // 2
