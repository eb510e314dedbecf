"""The runner of everything that is too long for the gate: `make exhaustive`, or
`python benchmarks/exhaustive.py NAME`.

Each part is one command. Its result, commit, date and CPU-seconds are kept in results/status.json
and shown in docs/status.md, which marks a result that is older than the code it measures.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from freshness import CODE, ROOT, STEP, commit_here, list_changes

KEPT = ROOT / "benchmarks" / "results" / "status.json"
PAGE = ROOT / "docs" / "status.md"
SET_CHILD_SUBREAPER = 36  # of prctl(2), in linux/prctl.h
LEFT_OUT = r"(?:, \d+ (?:deselected|warnings?))*"
PYTEST_SAYS = rf"^=* ?(\d+ (?:passed|failed|skipped|error).*?){LEFT_OUT} in [\d.]+s.*$"
INTRODUCTION = """# Status of the checks

`make exhaustive` runs every part below and writes this page; `make exhaustive ARGS="kills parity"`
runs only those two, and `make status` rewrites the page. A result is **stale** if sources or
configuration that it measures have changed since its commit; comments and docstrings do not count.
Figures in the README come from here, those of a GPU from
[results/gpu.md](../benchmarks/results/gpu.md).
The gate (`make test`) runs before every change and is not listed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command, and how its result is read."""

    says: str
    command: tuple[str, ...]  # after the interpreter
    result: str | None = PYTEST_SAYS  # its last match is the result; None: the exit status
    page: str | None = None  # with the figures, relative to the root
    measures: tuple[str, ...] = CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a part."""

    ok: bool
    result: str
    commit: str
    date: str
    cpu_seconds: float


def slow(says: str, *where: str) -> Part:
    page = PAGES.get(where[0])
    return Part(says=says, command=("-m", "pytest", "-q", "-m", "slow", *where), page=page)


def benchmark(says: str, script: str, page: str | None = None, measures: str = "") -> Part:
    """`measures`: the folders below src/tandem whose code decides the figures; empty: all of it."""
    shown = None if page is None else f"benchmarks/results/{page}"
    paths = tuple(f"src/tandem/{name}" for name in measures.split()) or CODE
    command = (f"benchmarks/{script}", "--save")
    return Part(says=says, command=command, result=None, page=shown, measures=paths)


PAGES = {"tests/test_pretend_device.py": "benchmarks/results/waits.md"}  # beside the test
FILES = {  # of long tests that have a row of their own
    "kills": ("SIGKILL at 20 places, resumed bit for bit", ("tests/test_kill.py",)),
    "learning": ("every algorithm learns a toy", ("tests/test_learning.py",)),
    "matrix": ("every preset on every model under every dynamics", ("tests/test_matrix.py",)),
    "ranks": (
        "DDP and FSDP2 on two processes",
        ("tests/test_sharding.py", "tests/test_sharded_runs.py"),
    ),
    "engines": (
        "a real vLLM samples, for one rank and for two",
        ("tests/policies/engines/test_real_vllm.py",),
    ),
    "device": (
        "presets, families, an engine and a resume on a pretended device",
        ("tests/test_pretend_device.py",),
    ),
    "sweeps": ("sweeps of real training that is killed", ("tests/sweep",)),
}
ELSEWHERE = [f"--ignore={path}" for _, paths in FILES.values() for path in paths]
PARTS = {
    **{name: slow(says, *paths) for name, (says, paths) in FILES.items()},
    "others": slow("all other long tests", "tests", *ELSEWHERE),
    "mutations": replace(
        benchmark("planted bugs that the tests notice", "mutations.py", "mutations.md"),
        measures=(*CODE, "tests", "benchmarks/mutants"),
    ),
    "parity": benchmark("updates equal to TRL's", "parity.py", "parity.md"),
    "language_step": replace(
        benchmark("a step of tokens beside TRL's", "language_step.py", "language_step.md"),
        measures=STEP,
    ),
    "flow_step": replace(
        benchmark("a step of pictures beside the bare transformer", "flow_step.py", "flow_step.md"),
        measures=STEP,
    ),
    "ahead": benchmark("rollouts ahead beside their simulation", "ahead.py", "ahead.md"),
    "packing": benchmark(
        "packed rows beside padded ones",
        "packing.py",
        "packing.md",
        "policies/language experience.py",
    ),
    "fresh_clone": Part(
        says="`make train` on a fresh clone with an empty home, then the image model",
        command=("benchmarks/fresh_clone.py",),
        result=r"^result: (.*)$",
        measures=(*CODE, "train.py", "Makefile", "pyproject.toml", "constraints.txt"),
    ),
    "startup": replace(
        benchmark("seconds until the first step", "startup.py", "startup.md"),
        measures=(*CODE, "train.py"),
    ),
    "group_statistics": benchmark(
        "vectorised group statistics", "group_statistics.py", "group_statistics.md", "advantages"
    ),
    "coverage": benchmark(
        "intervals and bands on simulated seeds", "coverage.py", "coverage.md", "compare"
    ),
    "algorithms": benchmark("learning curves of every preset", "algorithms.py"),
    "reading": benchmark(
        "reports of 20 and of 200 runs", "reading.py", "reading.md", "compare record"
    ),
    "largest": benchmark("how many GPUs a preset takes, estimated", "largest.py", "largest.md"),
    "structure": benchmark("the shape of the code", "structure.py", "structure.md"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"all, or some of {', '.join(PARTS)}")
    parser.add_argument("--page", action="store_true", help="write docs/status.md and run nothing")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    failed = False
    adopt_orphans()
    for name in [] if chosen.page else chosen.parts or PARTS:
        outcome = run(PARTS[name])
        print(f"{name}: {outcome.result} ({outcome.cpu_seconds:.0f} CPU-seconds)", flush=True)
        failed |= not outcome.ok
        kept[name] = asdict(outcome)
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(kept), encoding="utf-8")
    PAGE.write_text(page(kept), encoding="utf-8")
    return int(failed)


def run(part: Part) -> Outcome:
    """Run the command to its end, and show its output as it comes."""
    before, measured, lines = os.times(), commit_here(), []  # before others move it
    line = [sys.executable, *part.command]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    print(f"== {part.says}: {' '.join(part.command)}", flush=True)
    with subprocess.Popen(
        line, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for said in process.stdout:
            print(said, end="", flush=True)
            lines.append(said)
    wait_for_orphans()
    after = os.times()
    found = re.findall(part.result, "".join(lines), re.M) if part.result else []
    ok = process.returncode == 0
    return Outcome(
        ok=ok,
        result=found[-1] if found else "done" if ok else f"exit status {process.returncode}",
        commit=measured,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        cpu_seconds=round(sum(after[2:4]) - sum(before[2:4]), 1),
    )


def adopt_orphans() -> None:
    """Linux: make processes that a part leaves behind, such as a fork server, our children.

    Their CPU-seconds are counted when they are waited for; those of orphans would be lost.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_orphans(patience: float = 10) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # no child is left
            return
        if not ended:
            time.sleep(0.1)


def page(kept: dict[str, dict]) -> str:
    rows = [row(name, part, kept.get(name)) for name, part in PARTS.items()]
    head = "| part | what | result | commit | date | CPU-s |\n|---|---|---|---|---|---|\n"
    return f"{INTRODUCTION}\n{head}{''.join(rows)}"


def row(name: str, part: Part, found: dict | None) -> str:
    there = part.page is not None and (ROOT / part.page).exists()
    what = f"[{part.says}](../{part.page})" if there else part.says
    if found is None:
        return f"| {name} | {what} | not run yet | | | |\n"
    outcome = Outcome(**found)
    result = outcome.result if outcome.ok else f"**failed**: {outcome.result}"
    if changed := list_changes(outcome.commit, part.measures):
        files = "file" if len(changed) == 1 else "files"
        result += f" (**stale**: {len(changed)} {files} changed since)"
    return (
        f"| {name} | {what} | {result} | {outcome.commit} | {outcome.date} | "
        f"{outcome.cpu_seconds:.0f} |\n"
    )


if __name__ == "__main__":
    sys.exit(main())
