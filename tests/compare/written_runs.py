"""Run directories as training writes them, without training."""

import json
import os
import socket
import time
from pathlib import Path

import yaml

from tandem.processes import read_start_ticks
from tandem.record import writer
from tandem.record.reading.states import LOCK
from tandem.record.run_record import RunRecord
from tandem.types import Prompt


def write_run(
    folder: Path,
    curve,
    *,
    seed=0,
    algorithm="grpo",
    iterations=None,
    every=1,
    also=None,
    going=False,
    **changes,
) -> Path:
    """A run whose eval/accuracy is `curve`, one value every so many iterations.

    `also`: other metrics of its evaluations, a number or None at each. `changes`: top-level keys of
    its configuration. A curve that ends before `iterations` is that of a dead run, or with `going`
    of a running one.
    """
    last = (len(curve) - 1) * every
    config = {
        "seed": seed,
        "iterations": last if iterations is None else iterations,
        "run_dir": str(folder),
        "warm_start": ["algorithm=sft"],
        "continue_from": None,
        "model": {"path": "tiny", "seed": seed},
        "optimizer": {"lr": 1e-4},
        "data": {"seed": seed, "path": "letters"},
        "choices": {"algorithm": algorithm, "data": "letters", "recipe": f"tiny/{algorithm}"},
        "overrides": [f"algorithm={algorithm}", f"seed={seed}"],
    } | changes
    record = RunRecord(folder)
    record.begin(yaml.safe_dump(config), seed=seed, command=["train.py"])
    for iteration in range(last + 1):
        metrics = {"samples": 64 * iteration, "tokens": 640 * iteration, "reward/mean": 0.1}
        if iteration % every == 0:
            place = iteration // every
            metrics["eval/accuracy"] = curve[place]
            metrics |= {name: y[place] for name, y in (also or {}).items() if y[place] is not None}
        record.write(iteration, metrics, {"time/total": 2.0 * iteration, "time/cpu": iteration})
    record.close()
    if going:
        lock(folder, host="elsewhere")
    elif config["iterations"] > last:
        die(folder)
    return folder


def lock(folder: Path, **changed) -> None:
    """Write run.lock as this process would, but for what is changed."""
    own = {"host": socket.gethostname(), "pid": os.getpid(), "since": "then"}
    own["began"] = read_start_ticks(os.getpid())
    (folder / writer.LOCK).write_text(json.dumps({**own, **changed}))


def wordy(run: Path, times: int) -> Path:
    """Multiply the tokens of the run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    grown = [line | {"tokens": times * line["tokens"]} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in grown))
    return run


def die(folder: Path) -> None:
    """Make the run look dead: its lock is free, and its last line is an hour old."""
    (folder / LOCK).touch()
    for file in folder.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)


def write_prompts(folder: Path, values, *, iteration=1, ids=None, sources=None) -> None:
    """The results of an evaluation for each prompt."""
    ids = range(len(values)) if ids is None else ids
    sources = ["letters"] * len(values) if sources is None else sources
    asked = [Prompt(id=i, source=s, text="?") for i, s in zip(ids, sources, strict=True)]
    RunRecord(folder).prompts(iteration, asked, {"eval/accuracy": list(values)})


def write_sweep(folder: Path, finals: dict[str, list[float]], **common) -> Path:
    """One run per algorithm and seed, linear from 0 to its last score."""
    for algorithm, scores in finals.items():
        for seed, score in enumerate(scores):
            place = folder / f"{algorithm}-{seed}"
            write_run(place, [0.0, score], seed=seed, algorithm=algorithm, **common)
    return folder


def write_task(folder, task, finals, *, reward="math_verify", **data):
    """One run per algorithm and seed."""
    for algorithm, scores in finals.items():
        for seed, score in enumerate(scores):
            write_run(
                folder / f"{task}-{algorithm}-{seed}",
                [0.0, score],
                seed=seed,
                algorithm=algorithm,
                data={"seed": seed, "task": task, **data},
                choices={"algorithm": algorithm, "data": "reasoning_gym", "reward": reward},
            )
