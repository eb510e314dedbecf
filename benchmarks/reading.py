"""The time of `python -m tandem compare RUNS... [out=FOLDER]` on many long runs:
`python benchmarks/reading.py [--save]`.

20 and 200 runs of 1,000 iterations: four algorithms on the embedded task, 60 metrics per line,
every twentieth iteration an evaluation with 40 more and an answer to each of 300 prompts, and
timings. Each case is a separate process, as a user starts it: CPU-seconds including imports, for
the tables alone and with the report and its figures, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from omegaconf import OmegaConf

from tandem.config.composition import compose

RUNS = (20, 200)
ITERATIONS, EVERY = 1000, 20
METRICS, EVALUATED = 60, 40  # numbers of a line, and how many more an evaluation adds
PROMPTS = 300  # that it asks
ALGORITHMS = ("grpo", "rloo", "dapo", "gspo")
AIM = 5.0  # CPU-seconds to read the larger
WAYS = ("tables", "report")
NAMED = ("reward/mean", "actor/entropy", "response/length_mean", "samples", "tokens")
TIMING = ("perf/peak_memory_gib", "perf/tokens_per_second", "time/cpu", "time/iteration")
RESULT = Path(__file__).parent / "results" / "reading.md"


def write(folder: Path, runs: int) -> None:
    configs = {name: text_of(name) for name in ALGORITHMS}
    for number in range(runs):
        algorithm, seed = ALGORITHMS[number % len(ALGORITHMS)], number // len(ALGORITHMS)
        place = folder / f"{algorithm}-{seed}"
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(
            configs[algorithm].replace("seed: 0\n", f"seed: {seed}\n")
        )
        start = {"code": {"commit": "0" * 40}}
        (place / "manifest.json").write_text(json.dumps({"seed": seed, "starts": [start]}))
        metrics, timing = lines(random.Random(number))
        (place / "metrics.jsonl").write_text("".join(metrics))
        (place / "timing.jsonl").write_text("".join(timing))
        (place / "evaluations.jsonl").write_text("".join(answers(random.Random(number))))


def text_of(algorithm: str) -> str:
    """The resolved configuration of a run, as in its directory."""
    return OmegaConf.to_yaml(
        compose([f"algorithm={algorithm}", f"iterations={ITERATIONS}"]), resolve=True
    )


def lines(source: random.Random) -> tuple[list[str], list[str]]:
    """Both logs. All lines repeat the digits of one, because values do not affect the time."""
    others = {f"part_{i:02d}/of_the_loss": source.random() for i in range(METRICS - len(NAMED))}
    held_out = {f"eval/accuracy/length_{i:02d}": source.random() for i in range(EVALUATED - 1)}
    end = 0.7 + 0.1 * source.random()
    metrics, timing = [], []
    for i in range(ITERATIONS + 1):
        now = {name: end - (end - 0.1) * 2 ** (-i / 200) + 0.01 * source.random() for name in NAMED}
        now |= {"samples": 256 * i, "tokens": 8000 * i}
        if i % EVERY == 0:
            now |= held_out | {"eval/accuracy": now["reward/mean"]}
        metrics.append(json.dumps({"iteration": i, **dict(sorted((others | now).items()))}) + "\n")
        spent = dict.fromkeys(TIMING, 1.1234567 * (i + 1)) | {"time/total": 1.3 * (i + 1)}
        timing.append(json.dumps({"iteration": i, **spent}) + "\n")
    return metrics, timing


def answers(source: random.Random) -> list[str]:
    asked = {
        "prompts": [source.getrandbits(62) for _ in range(PROMPTS)],
        "sources": [f"length_{i % 9:02d}" for i in range(PROMPTS)],
    }
    names = ("eval/accuracy", "eval/greedy_accuracy", "eval/reward")
    return [
        json.dumps({"iteration": i, **asked, **{x: shares(source) for x in names}}) + "\n"
        for i in range(0, ITERATIONS + 1, EVERY)
    ]


def shares(source: random.Random) -> list[float]:
    return [source.randrange(65) / 64 for _ in range(PROMPTS)]


def measure(folder: Path, way: str) -> tuple[float, float, float]:
    """CPU-seconds, wall seconds, peak MiB."""
    out = [f"out={folder.parent / 'report'}"] if way == "report" else []
    command = [sys.executable, "-m", "tandem.compare", str(folder), *out]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"{command} ended with {status}"
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


Found = dict[tuple[int, str], tuple[float, float, float]]  # (runs, way) -> what `measure` says


def report(found: Found, sizes: dict[int, float]) -> str:
    rows = [
        f"| {runs} | {sizes[runs]:.0f} | {way} | {cpu:.2f} | {wall:.2f} | {memory:.0f} |"
        for (runs, way), (cpu, wall, memory) in found.items()
    ]
    few, many = RUNS
    growth = {way: found[many, way][0] / found[few, way][0] for way in WAYS}
    read = found[many, "tables"][0]
    return "\n".join(
        [
            f"# Reading runs of {ITERATIONS:,} iterations",
            "",
            "| runs | MiB of logs | asked for | CPU-s | wall s | peak MiB |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"From {few} to {many} runs the tables take {growth['tables']:.1f} times as long, "
            f"with the report {growth['report']:.1f} times. "
            f"Aim to read {many}: {AIM:g} CPU-s, {'met' if read < AIM else 'missed'}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help=f"into {RESULT.name}")
    save = parser.parse_args().save
    found, sizes = {}, {}
    for runs in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "runs")
            write(place, runs)
            sizes[runs] = sum(path.stat().st_size for path in place.rglob("*.jsonl")) / 2**20
            found |= {(runs, way): measure(place, way) for way in WAYS}
    text = report(found, sizes)
    print(text)
    if save:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
