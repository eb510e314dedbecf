"""Runs killed by SIGKILL at random moments and resumed, compared with uninterrupted runs.

`make kills` kills 20 runs of tokens and 20 of images, continues after a difference, and counts
bit-for-bit equal results: `PYTHONPATH=tests python -m kills [COUNT] [WORLD ...]`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from ladder import FEW
from processes import spend, start_training
from safetensors import safe_open

# A non-default seed, a reference and a warm start: resuming must restore all of them.
SHARED = (
    "seed=1", "iterations=6", "num_minibatches=2", "group_size=8", "evaluation.every=3",
    "warm_start=['algorithm=sft','iterations=2']", "checkpoints.every=2", "optimizer.lr=1e-3",
)  # fmt: skip
OF_TOKENS = (*FEW, "reward=target_length", "reward.target_length.function.target=5")
BY_STEPS = (*SHARED, "algorithm=grpo", "algorithm.kl.coef=0.1", "epochs=2")
OF_FLOWS = (
    "model=tiny_flow", "prompts_per_step=4", "rollout.steps=5", "evaluation.samples=2",
    "evaluation.prompts=4", "reward=jpeg_compressibility",  # tells images of a new model apart
)  # fmt: skip
RUNS = {
    "tokens": (
        *BY_STEPS, *OF_TOKENS, "prompts_per_step=8", "evaluation.prompts=16",
        "evaluation.pass_at=[1,8]",
    ),
    # Samples of older weights, which are part of a checkpoint.
    "older tokens": (
        *BY_STEPS, *OF_TOKENS, "prompts_per_step=8", "evaluation.prompts=16",
        "rollout.staleness=2",
    ),
    "older pictures": (
        *SHARED, *OF_FLOWS, "algorithm=nft", "algorithm.timestep_sampling.count=2",
        "rollout.staleness=2",
    ),
    # Alternating random steps, and images at every evaluation.
    "flows": (
        *BY_STEPS, *OF_FLOWS, "dynamics/stochastic=random_steps",
        "dynamics.stochastic.num_sde_steps=2",
    ),
    # A program per episode, whose calls are its turns; a kill may come between two of them.
    "agents": (
        *BY_STEPS, "environment=agent", "prompts_per_step=2", "group_size=4", "guards.no_signal=99",
        f"environment.world.command=[{sys.executable},-I,-S,tests/environments/agents.py,counting]",
        "reward=target_length", "reward.target_length.function.target=5",
        "rollout.max_new_tokens=6", "evaluation.prompts=4", "evaluation.samples=1",
        "evaluation.pass_at=[1]",
    ),
    # Two older sets of weights, one of which samples.
    "pictures": (
        *SHARED, *OF_FLOWS, "algorithm=crd", "algorithm.timestep_sampling.count=2",
        "algorithm.ema.sampling.decay.flat=0",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One run that was killed and resumed."""

    alive: bool  # when it was killed
    differs: tuple[str, ...]  # files that differ from those of the uninterrupted run


def whole_run(world: str, folder: Path) -> float:
    """An uninterrupted run, and the CPU-seconds of its training."""
    process = start_training(*RUNS[world], f"run_dir={folder}", output=log_path(folder))
    wait_for(folder / "manifest.json", process)
    spent = [*spend(process)]
    finish(process, folder)
    return spent[-1] - spent[0]


def kills(world: str, count: int, whole: Path, seconds: float, places: Path) -> Iterator[Kill]:
    """At moments in the first nine tenths of the run, equal for equal counts."""
    moments = random.Random(count)
    for number in range(count):
        folder = places / f"{world}-{number}"
        alive = kill_and_resume(world, folder, moments.uniform(0, 0.9) * seconds)
        yield Kill(alive=alive, differs=differences(folder, whole))


def kill_and_resume(
    world: str, folder: Path, moment: float, *, after: str = "manifest.json"
) -> bool:
    """`moment`: CPU-seconds of the process after the file `after` of the run is there, so that it
    is the same on a busy machine. Returns whether the kill came before the end."""
    process = start_training(*RUNS[world], f"run_dir={folder}", output=log_path(folder))
    wait_for(folder / after, process)
    spent = spend(process)
    until = next(spent, 0) + moment
    alive = any(now >= until for now in spent)
    process.kill()  # SIGKILL
    process.join()
    finish(start_training(f"resume={folder}", output=log_path(folder)), folder)
    return alive


def differences(folder: Path, whole: Path) -> tuple[str, ...]:
    parts = {"history": history, "weights": tensors, "samples": samples}
    return tuple(name for name, of in parts.items() if of(folder) != of(whole))


def history(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


def tensors(folder: Path) -> dict[str, bytes]:
    (weights,) = (folder / "model").rglob("*.safetensors")
    with safe_open(weights, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def samples(folder: Path) -> dict[str, bytes]:
    files = [path for path in (folder / "samples").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wait_for(path: Path, process: BaseProcess) -> None:
    while not path.exists() and process.is_alive():
        time.sleep(0.02)


def finish(process: BaseProcess, folder: Path) -> None:
    process.join(timeout=900)
    assert process.exitcode == 0, log_path(folder).read_text()


def log_path(folder: Path) -> Path:
    return folder.with_suffix(".log")


def main(words: Sequence[str]) -> int:
    count = int(words[0]) if words else 20
    equal = []
    for world in words[1:] or ("tokens", "pictures"):
        with tempfile.TemporaryDirectory() as place:
            whole = Path(place) / "whole"
            seconds = whole_run(world, whole)
            done = []
            for kill in kills(world, count, whole, seconds, Path(place)):
                done.append(kill)
                what = f"differs in {', '.join(kill.differs)}" if kill.differs else "equal"
                when = "in the middle" if kill.alive else "after the end"
                print(f"{world} {len(done)}: killed {when}, {what}", flush=True)
        equal.append(sum(not kill.differs for kill in done))
        middle = sum(kill.alive for kill in done)
        print(f"{world}: {equal[-1]} of {count} equal, {middle} killed in the middle", flush=True)
    return 0 if set(equal) == {count} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
