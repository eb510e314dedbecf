"""Learning curves of every algorithm on the embedded models, for three seeds.

A shortened run of each preset with the numbers of its recipe: `PROTOCOLS` says how long. Runs of a
seed share one warm start. `--save` keeps each finished run in results/algorithms.json at once, with
the commit and the date that it was taken at, and the same command again runs what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

from exhaustive import git

import tandem

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "algorithms.json"
TEACHER = ROOT / ".cache" / "teacher_of_flows"
SEEDS = range(3)
CURVE = ("eval/accuracy", "eval/reward", "eval/pair_accuracy")
LANGUAGE = ("data=sort_letters", "prompts_per_step=32", "iterations=40", "evaluation.every=8")
FLOW = ("model=tiny_flow", "iterations=20", "evaluation.every=4", "evaluation.samples=8")
SHORT = ("evaluation.temperatures=[1.0]", "evaluation.pass_at=[]", "evaluation.samples=2")
PAIRS = ("data=sort_pairs", "iterations=40", "evaluation.every=8", *SHORT)
SCRATCH = ("data=sort_letters", "warm_start=null", "evaluation.every=40", *SHORT)
WHOLE = ("model=tiny_flow", "iterations=30", "evaluation.every=5", "evaluation.samples=8")
STUDENT = (*FLOW, "data=shapes", f"algorithm.teachers.folders={{others: {TEACHER}}}")


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is trained, how long, and by which algorithms."""

    overrides: tuple[str, ...]
    algorithms: str  # names, between spaces


PROTOCOLS = {
    "letters": Protocol(
        (*LANGUAGE, *SHORT),
        "grpo dapo dr_grpo gspo gspo_token luspo gmpo cispo sapo dppo vespo clip_cov kl_cov gpg"
        " cfpo drpo fipo m2po topr raft_pp real pref_grpo otb"
        " opo rloo passk maxrl gdpo reinforce_pp_baseline reinforce reinforce_pp remax ppo"
        " dpo_online",
    ),
    "pairs": Protocol(PAIRS, "dpo ipo simpo orpo kto"),
    "demonstrations": Protocol(SCRATCH, "sft"),
    "shapes": Protocol(
        FLOW,
        "nft grpo flow_grpo dance_grpo mix_grpo grpo_guard flow_dppo tempflow_grpo awm fpo dgpo crd"
        " gardo dapo dr_grpo gspo rloo reinforce ppo",
    ),
    "whole": Protocol(WHOLE, "grpo"),  # for the picture of the README
    "taught": Protocol(STUDENT, "diffusion_opd"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="keep every run in results/")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these algorithms alone")
    chosen = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name, words in runs():
        algorithm = name.split("/")[1]
        if name in kept or (chosen.only and algorithm not in chosen.only):
            continue
        kept[name] = measure(words)
        print(f"{name}: {kept[name]['curve'][-1]}, {kept[name]['cpu_seconds']} s", flush=True)
        if chosen.save:
            save(kept)


def runs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(protocol/algorithm/seed, overrides): every algorithm under one seed, then under the next."""
    for seed in SEEDS:
        for protocol, part in PROTOCOLS.items():
            for algorithm in part.algorithms.split():
                chosen = (f"algorithm={algorithm}", f"seed={seed}", *part.overrides)
                yield f"{protocol}/{algorithm}/{seed}", chosen


def measure(words: tuple[str, ...]) -> dict[str, object]:
    """One run: its points {samples, accuracy, reward}, CPU-seconds, commit and date."""
    if any("teachers" in word for word in words):
        train_teacher()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        tandem.train(*words, "checkpoints.every=100000", f"run_dir={path}")
        return {
            "curve": list(points(read_lines(path / "metrics.jsonl"))),
            "cpu_seconds": round(read_lines(path / "timing.jsonl")[-1]["time/cpu"], 1),
            "commit": git("rev-parse", "--short", "HEAD"),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "overrides": [word.replace(str(TEACHER), "RUN") for word in words],
        }


def train_teacher() -> None:
    """The run of DiffusionNFT that distillation learns from, once."""
    if not (TEACHER / "model").exists():
        tandem.train("model=tiny_flow", "algorithm=nft", "seed=0", f"run_dir={TEACHER}")


def points(lines: list[dict]) -> Iterator[dict[str, float]]:
    for line in lines:
        found = {name.partition("/")[2]: round(line[name], 4) for name in CURVE if name in line}
        if found:
            yield {"iteration": line["iteration"], "samples": line["samples"], **found}


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def save(kept: Mapping[str, object]) -> None:
    """The whole file anew, put in place at once: a kill leaves the old one or the new one."""
    beside = KEPT.with_suffix(".part")
    rows = ",\n".join(f'"{name}": {json.dumps(kept[name])}' for name in sorted(kept))
    beside.write_text(f"{{\n{rows}\n}}\n")
    beside.replace(KEPT)


if __name__ == "__main__":
    main()
