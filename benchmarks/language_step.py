"""The cost of a training step of tokens beside the bare model, TRL, and transformers' sampling.

Every program has its own process; they take turns, so a busy machine slows all alike. `--save`
stores each workload at once; repeating the command measures what is missing or older than the code.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

from freshness import STEP, commit_here, list_changes
from turns import Runner
from workloads import CELLS, SIZES, Workload, embedded_workload, in_grid

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "language_step.json"
WARM_UP = 1  # uncounted turns; few counted ones suffice, because the programs take turns
EMBEDDED = "tiny_lm"
ROUNDS = {EMBEDDED: 5, "0.3M": 5, "0.8M": 5, "20M": 2}
AIMS = {"bare": 1.05, "trl": 0.7, "generate": 0.6}  # Tandem's CPU seconds over theirs, at worst

Report = dict[str, object]


def main() -> None:
    chosen = arguments()
    os.environ.setdefault("PROJECT_ROOT", str(ROOT))
    kept = {report["workload"]: report for report in of_this_code()} if chosen.save else {}
    found = {"gflops_of_one_core": round(sgemm_rate() / 1e9, 1)}
    for name in chosen.only:
        if name not in kept:
            with tempfile.TemporaryDirectory() as folder:
                kept[name] = measure(workload(name, Path(folder), chosen.rounds), Path(folder))
            print(line(kept[name]), flush=True)
        found["cells"] = [kept[name] for name in (EMBEDDED, *CELLS) if name in kept]
        if chosen.save:
            KEPT.write_text(json.dumps(found, indent=1) + "\n")
            KEPT.with_suffix(".md").write_text(as_text(found))
    print(as_text(found))


def of_this_code() -> list[Report]:
    """Saved results that are not older than the code: the grid takes long."""
    saved = json.loads(KEPT.read_text())["cells"] if KEPT.exists() else []
    return [report for report in saved if not list_changes(report["commit"], STEP)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[EMBEDDED, *CELLS], metavar="NAME")
    parser.add_argument("--rounds", type=int, help="rounds, instead of those of each size")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    if unknown := {*chosen.only} - {EMBEDDED, *CELLS}:
        parser.error(f"no workload {', '.join(unknown)}; there are {EMBEDDED}, {', '.join(CELLS)}")
    return chosen


def workload(name: str, folder: Path, rounds: int | None) -> Workload:
    size = name.partition(" ")[0]
    steps = (rounds or ROUNDS[size]) + WARM_UP
    if size not in SIZES:
        return embedded_workload(folder, steps=steps)
    return in_grid(CELLS[name], folder, steps=steps)


def measure(workload: Workload, folder: Path) -> Report:
    """Tandem goes first in every round: the bare model and `generate` repeat its step."""
    measured = commit_here()  # before others move it
    runners: dict[str, Runner] = {}
    try:
        for name, start in programs(workload, folder).items():
            runners[name] = start()
        for _ in range(workload.steps):
            for runner in runners.values():
                runner.turn()
    finally:
        for runner in runners.values():
            runner.close()
    return {
        "workload": workload.name,
        "commit": measured,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "says": workload.says,
        "rounds": workload.steps - WARM_UP,
        "programs": {n: runner.summary(warm_up=WARM_UP) for n, runner in runners.items()},
        "cpu_over": {name: by_round(runners, name) for name in runners if name != "tandem"},
        "largest_weight_gap_to_bare": weight_gap(folder),
    }


def programs(workload: Workload, folder: Path) -> dict[str, Callable[[], Runner]]:
    """The programs in starting order: Tandem writes the weights that the others read."""
    import step_bare  # they import heavy packages
    import step_generate
    import step_tandem

    Runner(step_tandem.prepare, folder, workload.overrides).close()
    known: dict[str, Callable[[], Runner]] = {
        "tandem": lambda: Runner(step_tandem.steps, folder, workload.overrides),
        "bare": lambda: Runner(step_bare.steps, folder),
        "generate": lambda: Runner(step_generate.steps, folder),
    }
    if importlib.util.find_spec("trl") is None:
        print("trl is not installed (the extra `bench`): that comparison is left out", flush=True)
        return known
    import step_trl

    return known | {"trl": lambda: Runner(step_trl.steps, folder, workload.reward)}


def by_round(runners: dict[str, Runner], name: str) -> float:
    """Median ratio of CPU seconds per round; for `generate`, of sampling alone."""
    pairs = zip(runners["tandem"].laps[WARM_UP:], runners[name].laps[WARM_UP:], strict=True)
    alone = name == "generate"
    return median((ours.sampling if alone else ours.cpu) / theirs.cpu for ours, theirs in pairs)


def weight_gap(folder: Path) -> float:
    """Largest difference of any weight: rounding proves that the bare steps did all the work."""
    import torch

    ours, bare = (torch.load(folder / name) for name in ("end.pt", "bare_end.pt"))
    bare = {name.removeprefix("model.model."): value for name, value in bare.items()}
    return max(float((ours[name] - bare[name]).abs().max()) for name in ours)


def sgemm_rate(size: int = 1024, tries: int = 10) -> float:
    """Floating-point operations per CPU second of one square product in float32."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(size, size)
    best = min(_seconds(lambda: a @ a) for _ in range(tries))
    return 2 * size**3 / best


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def line(report: Report) -> str:
    over = " ".join(f"{name} {value:.2f}" for name, value in report["cpu_over"].items())
    return f"{report['workload']}: {report['programs']['tandem']['cpu_s']:.3f} CPU s; over {over}"


def as_text(found: Report) -> str:
    names = [name for name in AIMS if all(name in r["cpu_over"] for r in found["cells"])]
    head = " | ".join(("workload", "Tandem CPU s", "MiB above loaded", *map(over, names)))
    head = f"| {head} | share of sgemm | weights apart |\n|---{'|---' * (len(names) + 4)}|\n"
    rows = [row(report, names, found["gflops_of_one_core"] * 1e9) for report in found["cells"]]
    closing = [summary(name, [r["cpu_over"][name] for r in found["cells"]]) for name in names]
    return (
        f"Commit {describe_cells(found['cells'])}, one thread, "
        f"{found['gflops_of_one_core']:.0f} GFLOP/s in a square product.\n\n"
        f"{head}{''.join(rows)}\n{chr(10).join(closing)}\n"
    )


def describe_cells(cells: Iterable[Report]) -> str:
    return "; ".join(dict.fromkeys(f"{cell['commit']}, {cell['date']}" for cell in cells))


def over(name: str) -> str:
    return "sampling over generate" if name == "generate" else f"over {name}"


def row(report: Report, names: Iterable[str], rate: float) -> str:
    ours, bare = report["programs"]["tandem"], report["programs"]["bare"]
    cells = [
        report["workload"],
        f"{ours['cpu_s']:.3f}",
        f"{ours['peak_above_loaded_mib']:.0f}",
        *(f"{report['cpu_over'][name]:.2f}" for name in names),
        f"{bare['flops'] / ours['cpu_s'] / rate:.2f}",
        f"{report['largest_weight_gap_to_bare']:.0e}",
    ]
    return f"| {' | '.join(cells)} |\n"


def summary(name: str, ratios: list[float]) -> str:
    return (
        f"* {over(name)}: median {median(ratios):.2f}, worst {max(ratios):.2f}; "
        f"aim {AIMS[name]:.2f} at worst"
    )


if __name__ == "__main__":
    main()
