"""Start-up times: `python benchmarks/startup.py [--save]`.

Seconds until the first finished optimiser step without a warm start, and the share of imports;
until the help; until a dry run has ended; until a misspelt word and a value that binds to nothing
are refused.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 5
FIRST_STEP = ("warm_start=null", "iterations=1", "evaluation.every=null", "trainer=cpu")
CASES = {  # name -> command line, exit status, aim in seconds
    "the first optimiser step's line": (FIRST_STEP, 0, 10),
    "--help": (("--help",), 0, 2),
    "dry_run=true": (("dry_run=true",), 0, 4),
    "misspelt key: iteratons=1": (("iteratons=1",), 2, 2),
    "misspelt choice: algorithm=gpro": (("algorithm=gpro",), 2, 2),
    "unbound value: epochs=two": (("epochs=two",), 2, 6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    seconds = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, (arguments, status, _) in CASES.items():
            seconds[name].append(start(arguments, status))
    text = as_text(seconds) + "\n" + imports_of_first_step()
    print(text)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "startup.md").write_text(text)


def start(arguments: tuple[str, ...], status: int) -> tuple[float, float]:
    """Wall seconds until the first line of the record, or the end; CPU seconds in total."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = os.times(), time.perf_counter()
        line = command(arguments, folder)
        with subprocess.Popen(line, env=environment(), stdout=PIPE, stderr=STDOUT) as process:
            while process.poll() is None and not has_a_line(Path(folder, "run/metrics.jsonl")):
                time.sleep(0.01)
            wall = time.perf_counter() - began
            said = process.communicate()[0].decode()
        after = os.times()
    if process.returncode != status:
        raise SystemExit(f"{arguments} ended with {process.returncode}:\n{said}")
    spent = after.children_user + after.children_system
    return wall, spent - before.children_user - before.children_system


def has_a_line(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def command(arguments: tuple[str, ...], folder: str, *python: str) -> list[str]:
    place = (f"run_dir={folder}/run",) if arguments == FIRST_STEP else ()
    return [sys.executable, *python, str(ROOT / "train.py"), *arguments, *place]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def as_text(seconds: dict[str, list[tuple[float, float]]]) -> str:
    lines = ["| until | wall s | aim s | CPU s of the whole command |\n|---|---|---|---|\n"]
    for name, laps in seconds.items():
        wall, cpu = (median(column) for column in zip(*laps, strict=True))
        lines.append(f"| {name} | {wall:.2f} | {CASES[name][2]} | {cpu:.2f} |\n")
    return "".join(lines)


def imports_of_first_step() -> str:
    """Import seconds of each package's own modules, by `python -X importtime`."""
    with tempfile.TemporaryDirectory() as folder:
        line = command(FIRST_STEP, folder, "-X", "importtime")
        done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=True)
    own = Counter()
    for took, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr):
        own[module.split(".")[0]] += int(took) / 1e6
    rows = [f"| {package} | {took:.2f} |\n" for package, took in own.most_common(12)]
    head = f"| imports, all | {own.total():.2f} |\n"
    return "| own modules of | s under importtime |\n|---|---|\n" + head + "".join(rows)


if __name__ == "__main__":
    main()
