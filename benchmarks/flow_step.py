"""The cost of a training step of a flow, beside the bare transformer with the same calls.

Both run in one process and take turns, one training step each, so a busy machine slows both. With
`--flow-factory` a whole iteration is also compared with Flow-Factory's.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

import flow_pipeline
import torch
from flow_bare import Bare, CpuClock
from flow_workloads import ALGORITHMS, WORKLOADS, Work, Workload, module_of
from freshness import commit_here
from lightning.pytorch import Callback, Trainer
from torch import nn
from turns import forget_peak, memory

from tandem.algorithm.algorithm import Algorithm
from tandem.launch.run import trainer_for
from tandem.settings.settings import Devices
from tandem.training.module import PostTraining

KEPT = Path(__file__).resolve().parent / "results" / "flow_step.json"
AIM = 1.15  # Tandem's time over that of the bare transformer
WARM_UP = 1  # rounds that are not counted
SIDES = ("tandem", "bare")
CLOCKS = ("cpu", "wall")

Report = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One turn of one side: CPU and wall seconds, by part."""

    cpu: dict[str, float]
    wall: dict[str, float]
    peak: int  # bytes above what was held before


def main() -> None:
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    reports = []
    for workload in WORKLOADS:
        if workload.name not in chosen.only:
            continue
        for name, algorithm in ALGORITHMS.items():
            began = time.perf_counter()
            reports.append(measure(workload, name, algorithm, rounds=chosen.rounds))
            took = time.perf_counter() - began
            print(f"{workload.name}, {name}: measured in {took:.0f} s", flush=True)
    if chosen.save and KEPT.exists():  # parts that are not measured now keep their saved figures
        saved = json.loads(KEPT.read_text())
        reports += [report for report in saved if report["workload"] not in chosen.only]
    beside = flow_pipeline.sections(
        chosen.flow_factory, chosen.flow_factory_python, rounds=chosen.rounds, save=chosen.save
    )
    text = "\n".join([as_text(reports, chosen.threads), *beside])
    print(text)
    if chosen.save:
        KEPT.write_text(json.dumps(reports, indent=1) + "\n")
        KEPT.with_suffix(".md").write_text(text)


def arguments() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--rounds", type=int, help="counted rounds, instead of a workload's own")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flow-factory", type=Path, metavar="DIR", help="a checkout of it")
    parser.add_argument("--flow-factory-python", type=Path, default=sys.executable, metavar="FILE")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    return parser.parse_args()


def measure(workload: Workload, name: str, algorithm: Algorithm, *, rounds: int | None) -> Report:
    """Tandem goes first in every round. Both must make the minimal number of calls."""
    measured = commit_here()  # before others move it
    work = Work.of(workload, algorithm)
    rounds = rounds or (workload.shown_rounds if work.imitates else workload.rounds)
    with tempfile.TemporaryDirectory() as folder:
        iterations = WARM_UP + rounds
        module = module_of(workload, algorithm, Path(folder), iterations=iterations)
        turns = TakingTurns(module, work, rounds=iterations)
        cpu = Devices(
            accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision="32-true"
        )
        trainer_for(cpu, [turns]).fit(module)
    count = {"step": 1, "update": work.updates}
    count |= {} if work.imitates else {"picture": work.pictures}
    laps = {side: turns.laps[side][WARM_UP:] for side in SIDES}
    return {
        "workload": workload.name,
        "says": workload.says,
        "algorithm": name,
        "rounds": rounds,
        "commit": measured,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "calls": [{"rows": n, "gradient": g, "times": c} for (n, g), c in work.calls.items()],
        **{side: medians(laps[side], count) for side in SIDES},
        "ratio": ratios(*laps.values(), tuple(count)),
        "peak_mib": {side: laps[side][-1].peak / 2**20 for side in SIDES},
    }


class TakingTurns(Callback):
    """After every training step of Lightning's loop the bare transformer repeats its calls."""

    def __init__(self, module: PostTraining, work: Work, *, rounds: int) -> None:
        self.work, self.rounds, self.clock = work, rounds, CpuClock()
        self.laps: dict[str, list[Lap]] = {side: [] for side in SIDES}
        module.clock = module.source.clock = self.clock
        model = module.policy.model
        self.bare = Bare(model.network, module.policy.adapter, work)
        frozen = [] if model.frozen is None else [model.frozen.network]
        self.calls = {
            "tandem": count_calls(model.network, *frozen),
            "bare": count_calls(self.bare.network),
        }

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.begin(self.clock)

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.end("tandem", self.clock)
        self.begin(self.bare.clock)
        self.bare.step()
        self.end("bare", self.bare.clock)
        self.begin(self.clock)

    def begin(self, clock: CpuClock) -> None:
        """Start a lap; before the last one return freed memory, so that its peak is measured."""
        gc.collect()
        if len(self.laps["bare"]) == self.rounds - 1:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        forget_peak()
        clock.forget()
        self.held = memory("VmRSS")
        self.began = time.process_time(), time.perf_counter()

    def end(self, side: str, clock: CpuClock) -> None:
        cpu, wall = time.process_time() - self.began[0], time.perf_counter() - self.began[1]
        peak = memory("VmHWM") - self.held
        self.laps[side].append(
            Lap(cpu=parts(clock.cpu, cpu), wall=parts(clock.seconds, wall), peak=peak)
        )
        calls = self.calls[side]
        if len(self.laps[side]) > 1 and calls != self.work.calls:  # the first tests the sampler too
            raise SystemExit(f"{side} called {dict(calls)}, not {dict(self.work.calls)}")
        calls.clear()


def count_calls(*networks: nn.Module) -> Counter[tuple[int, bool]]:
    """(rows, with gradient) -> number of calls from now on."""
    calls: Counter[tuple[int, bool]] = Counter()

    def count(_: nn.Module, args: tuple, given: dict[str, torch.Tensor]) -> None:
        calls[len(given["hidden_states"]), torch.is_grad_enabled()] += 1

    for network in networks:
        network.register_forward_pre_hook(count, with_kwargs=True)
    return calls


def parts(phases: dict[str, float], whole: float) -> dict[str, float]:
    """Seconds of sampling, of all updates, and of the whole step."""
    updating = phases.get("complete", 0.0) + phases.get("train", 0.0)
    return {"picture": phases.get("sample", 0.0), "update": updating, "step": whole}


def medians(laps: list[Lap], count: dict[str, int]) -> dict[str, float]:
    """Median seconds per item, by clock and part; `count`: items in a lap."""
    return {
        f"{clock}_{part}": median(getattr(lap, clock)[part] for lap in laps) / number
        for clock in CLOCKS
        for part, number in count.items()
    }


def ratios(ours: list[Lap], bare: list[Lap], of: tuple[str, ...]) -> dict[str, float]:
    """Medians of the ratios of each round: a slow round slows both of its turns."""
    return {
        f"{clock}_{part}": median(
            getattr(a, clock)[part] / getattr(b, clock)[part]
            for a, b in zip(ours, bare, strict=True)
        )
        for clock in CLOCKS
        for part in of
    }


def as_text(reports: list[Report], threads: int) -> str:
    says = {report["workload"]: report["says"] for report in reports}
    sections = [
        f"### {name}: {said}\n\n" + table([r for r in reports if r["workload"] == name])
        for name, said in says.items()
    ]
    taken = "; ".join(
        dict.fromkeys(f"{r['commit']}, {r['date']}, {r['workload']}" for r in reports)
    )
    closing = (
        f"Commit {taken}; {threads} thread(s); aim at most {AIM} of the bare transformer's time.\n"
    )
    return "\n".join([*sections, closing])


def table(reports: list[Report]) -> str:
    head = (
        "| algorithm | rounds | CPU s per picture: Tandem, bare, ratio | CPU s per update: Tandem, "
        "bare, ratio | step, CPU ratio | step, wall ratio | MiB above held: Tandem, bare |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(row(report) for report in reports)


def row(report: Report) -> str:
    ours, bare, ratio = (report[name] for name in ("tandem", "bare", "ratio"))

    def three(what: str) -> str:
        if what not in ratio:
            return "none"
        return f"{ours[what]:.4f}, {bare[what]:.4f}, **{ratio[what]:.3f}**"

    memory = ", ".join(f"{report['peak_mib'][side]:.0f}" for side in SIDES)
    return (
        f"| {report['algorithm']} | {report['rounds']} | {three('cpu_picture')} | "
        f"{three('cpu_update')} | {ratio['cpu_step']:.3f} | {ratio['wall_step']:.3f} | {memory} |\n"
    )


if __name__ == "__main__":
    main()
