"""kill -9 at any moment, then resume=: not a bit differs from a run that was left alone."""

import functools
import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from processes import start_training
from safetensors import safe_open

# Another seed than the default, a reference and a warm start: all must be found again.
SHARED = (
    "seed=1", "iterations=10", "num_minibatches=2", "group_size=8", "evaluation.every=4",
    "warm_start=['algorithm=sft','iterations=2']", "checkpoints.every=2", "optimizer.lr=1e-3",
)  # fmt: skip
BY_STEPS = (*SHARED, "algorithm=grpo", "algorithm.kl.coef=0.1", "epochs=2")
OF_FLOWS = (
    "model=tiny_flow", "prompts_per_step=4", "rollout.steps=5", "evaluation.samples=2",
    "evaluation.prompts=4",
)  # fmt: skip
RUNS = {
    "tokens": (
        *BY_STEPS, "prompts_per_step=16", "evaluation.prompts=32", "evaluation.pass_at=[1,8]",
        "reward=target_length", "reward.target_length.function.target=5",
    ),
    # Steps that are random in turn, and a picture for every evaluation.
    "flows": (
        *BY_STEPS, *OF_FLOWS, "dynamics/stochastic=random_steps",
        "dynamics.stochastic.num_sde_steps=2",
    ),
    # Two older policies, one of which samples.
    "pictures": (
        *SHARED, *OF_FLOWS, "algorithm=crd", "algorithm.regression.count=2",
        "algorithm.snapshots.sampling.decay.flat=0",
    ),
}  # fmt: skip
KILLS = [
    pytest.param("tokens", 3, id="tokens: 3 kills"),
    pytest.param("flows", 1, id="flows: 1 kill"),
    *(pytest.param(world, 20, id=f"{world}: 20 kills", marks=pytest.mark.slow) for world in RUNS),
]


def said_in(folder: Path) -> Path:
    return folder.with_suffix(".log")


def finish(process: BaseProcess, folder: Path) -> None:
    process.join(timeout=300)
    assert process.exitcode == 0, said_in(folder).read_text()


def tensors(folder: Path) -> dict[str, bytes]:
    (weights,) = (folder / "model").rglob("*.safetensors")
    with safe_open(weights, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def samples(folder: Path) -> dict[str, bytes]:
    files = [path for path in (folder / "samples").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Callable[[str], tuple[Path, float]]:
    """A run of a world that was left alone, and how long it trained."""

    @functools.cache
    def of(world: str) -> tuple[Path, float]:
        folder = tmp_path_factory.mktemp(world) / "run"
        process = start_training(*RUNS[world], f"run_dir={folder}", output=said_in(folder))
        began = wait_for(folder / "manifest.json", process)
        finish(process, folder)
        return folder, time.monotonic() - began

    return of


def wait_for(path: Path, process: BaseProcess) -> float:
    while not path.exists() and process.is_alive():
        time.sleep(0.02)
    return time.monotonic()


def kill_and_resume(world: str, folder: Path, moment: float) -> bool:
    """Whether the kill came before the end."""
    process = start_training(*RUNS[world], f"run_dir={folder}", output=said_in(folder))
    wait_for(folder / "manifest.json", process)
    time.sleep(moment)
    alive = process.is_alive()
    process.kill()  # SIGKILL
    process.join()
    finish(start_training(f"resume={folder}", output=said_in(folder)), folder)
    return alive


@pytest.mark.system
@pytest.mark.parametrize(("world", "kills"), KILLS)
def test_a_killed_run_resumes_to_the_same_bits(straight, tmp_path, world, kills):
    whole, seconds = straight(world)
    moments = random.Random(kills)
    alive = []
    for number in range(kills):
        folder = tmp_path / str(number)
        alive.append(kill_and_resume(world, folder, moments.uniform(0, 0.9) * seconds))
        same = (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
        assert same, f"kill {number}: another history"
        assert tensors(folder) == tensors(whole), f"kill {number}: other weights"
        assert samples(folder) == samples(whole), f"kill {number}: other samples"
    assert sum(alive) > kills // 2
