"""What a training step costs beside the bare model and beside TRL's.

Every program has a process of its own; they take turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

from turns import Runner
from workloads import Workload, qwen3, tiny

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
WARM_UP = 2  # turns that are not counted
AIMS = {"bare": 1.15, "trl": 0.5}  # Tandem's time over theirs
MEASURES = ("cpu_s", "wall_s", "peak_mib", "peak_above_loaded_mib")

Report = dict[str, object]


def main() -> None:
    chosen = arguments()
    os.environ.setdefault("PROJECT_ROOT", str(ROOT))
    reports = []
    for name, make in {"tiny_lm": tiny, "qwen3_20m": qwen3}.items():
        if name in chosen.only:
            with tempfile.TemporaryDirectory() as folder:
                workload = make(Path(folder), steps=chosen.steps[name] + WARM_UP)
                reports.append(measured(workload, Path(folder)))
            print(as_text(reports[-1]), flush=True)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "language_step.json").write_text(json.dumps(reports, indent=1) + "\n")
        text = "\n".join(as_text(report) for report in reports)
        (RESULTS / "language_step.md").write_text(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["tiny_lm", "qwen3_20m"])
    parser.add_argument("--tiny-steps", type=int, default=20)
    parser.add_argument("--qwen3-steps", type=int, default=6)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    chosen.steps = {"tiny_lm": chosen.tiny_steps, "qwen3_20m": chosen.qwen3_steps}
    return chosen


def measured(workload: Workload, folder: Path) -> Report:
    """Tandem first in every round: the bare model repeats the work of its step."""
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
    found = {name: runner.summary(warm_up=WARM_UP) for name, runner in runners.items()}
    return {
        "workload": workload.name,
        "says": workload.says,
        "rounds": workload.steps - WARM_UP,
        "programs": found,
        "tandem_over": {name: ratios(runners, found, name) for name in found if name != "tandem"},
        "largest_weight_gap_to_bare": weight_gap(folder),
    }


def programs(workload: Workload, folder: Path) -> dict[str, Callable[[], Runner]]:
    """Started in this order: what Tandem starts from is what the others read."""
    import step_bare  # they import heavy packages: in the processes that measure, and here once
    import step_tandem

    Runner(step_tandem.prepare, folder, workload.overrides).close()
    known: dict[str, Callable[[], Runner]] = {
        "tandem": lambda: Runner(step_tandem.steps, folder, workload.overrides),
        "bare": lambda: Runner(step_bare.steps, folder),
    }
    if importlib.util.find_spec("trl") is None:
        print("trl is not installed (the extra `bench`): that comparison is left out", flush=True)
        return known
    import step_trl

    return known | {"trl": lambda: Runner(step_trl.steps, folder, workload.reward)}


def ratios(runners: dict[str, Runner], found: dict[str, dict], name: str) -> dict[str, float]:
    """Of medians, and the median of the ratios round by round."""
    pairs = zip(runners["tandem"].laps[WARM_UP:], runners[name].laps[WARM_UP:], strict=True)
    of_medians = {m: found["tandem"][m] / found[name][m] for m in MEASURES}
    return of_medians | {"cpu_by_round": median(ours.cpu / theirs.cpu for ours, theirs in pairs)}


def weight_gap(folder: Path) -> float:
    """Largest difference of any weight: the bare steps did the whole work if it is rounding."""
    import torch

    ours, bare = (torch.load(folder / name) for name in ("end.pt", "bare_end.pt"))
    bare = {name.removeprefix("model.model."): value for name, value in bare.items()}
    return max(float((ours[name] - bare[name]).abs().max()) for name in ours)


def as_text(report: Report) -> str:
    head = (
        "| program | CPU s | wall s | peak MiB | above loaded MiB | sampled tokens |\n"
        "|---|---|---|---|---|---|\n"
    )
    rows = [
        f"| {name} | {x['cpu_s']:.3f} | {x['wall_s']:.3f} | {x['peak_mib']:.0f} | "
        f"{x['peak_above_loaded_mib']:.0f} | {x['tokens']:.0f} |\n"
        for name, x in report["programs"].items()
    ]
    lines = [
        f"Tandem / {name}: CPU {x['cpu_s']:.3f} (by round {x['cpu_by_round']:.3f}), "
        f"wall {x['wall_s']:.3f}, peak {x['peak_mib']:.3f}, "
        f"above loaded {x['peak_above_loaded_mib']:.3f}; aim {AIMS[name]} of the time\n"
        for name, x in report["tandem_over"].items()
    ]
    gap = report["largest_weight_gap_to_bare"]
    closing = f"Largest difference between Tandem's and the bare model's weights: {gap:.1e}\n"
    title = f"### {report['workload']}: {report['says']}, {report['rounds']} rounds\n\n"
    return title + head + "".join(rows) + "\n" + "\n".join(lines) + "\n" + closing


if __name__ == "__main__":
    main()
