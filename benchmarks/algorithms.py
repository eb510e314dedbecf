"""Learning curves of every algorithm on the embedded models, for three seeds.

A shortened run of each preset with the numbers of its recipe; `PROTOCOLS` has the lengths. Runs of
a seed share one warm start. `--save` stores each finished run in results/algorithms.json at once,
with its commit and date; repeating the command runs what is missing or older than the code.
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

from freshness import CODE, commit_here, list_changes

import tandem
from tandem.stop import Stop

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "algorithms.json"
CACHE = ROOT / ".cache"
TEACHERS = {  # of distillation: the folder of each, and its command
    "teacher_of_flows": ("model=tiny_flow", "algorithm=nft"),
    "teacher_of_letters": ("data=sort_letters", "prompts_per_step=32", "algorithm=grpo"),
}
SEEDS = range(3)
CURVE = ("eval/accuracy", "eval/reward", "eval/pair_accuracy")
LANGUAGE = ("data=sort_letters", "prompts_per_step=32", "iterations=40", "evaluation.every=8")
FLOW = ("model=tiny_flow", "iterations=20", "evaluation.every=4", "evaluation.samples=8")
SHORT = ("evaluation.temperatures=[1.0]", "evaluation.pass_at=[]", "evaluation.samples=2")
PAIRS = ("data=sort_pairs", "iterations=40", "evaluation.every=8", *SHORT)
SCRATCH = ("data=sort_letters", "warm_start=null", "evaluation.every=40", *SHORT)
WHOLE = ("model=tiny_flow", "iterations=30", "evaluation.every=5", "evaluation.samples=8")
FEW_STEPS = ("model=tiny_flow", "iterations=100", "evaluation.every=20", "evaluation.samples=8")
MASKED = ("model=tiny_masked", "iterations=40", "evaluation.every=8", *SHORT)
GAME = ("data=hilo", "iterations=80", "evaluation.every=16", *SHORT)
CHAIN = ("model=tiny_chain", "iterations=20", "evaluation.every=5")


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is trained, for how long, and with which algorithms."""

    overrides: tuple[str, ...]
    algorithms: str  # names, between spaces
    teacher: str | None = None  # one of TEACHERS


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
    "taught": Protocol((*FLOW, "data=shapes"), "diffusion_opd", "teacher_of_flows"),
    "students": Protocol((*LANGUAGE, *SHORT), "gkd opd minillm", "teacher_of_letters"),
    "own_teachers": Protocol((*LANGUAGE, *SHORT), "sdpo sdft"),
    "few_steps": Protocol(FEW_STEPS, "dmd2 tdm tdm_r1"),
    "masked": Protocol(MASKED, "grpo diffu_grpo coupled_grpo wd1 spg espo trace_rl"),
    "games": Protocol(GAME, "grpo group_in_group turn_to_go"),
    "riddles": Protocol(CHAIN, "grpo unigrpo"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="keep every run in results/")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these algorithms or protocols")
    chosen = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name, protocol, words in runs():
        asked = not chosen.only or {*chosen.only} & {*name.split("/")}
        if not asked or (name in kept and not list_changes(kept[name]["commit"], CODE)):
            continue
        kept[name] = measure(words, protocol.teacher)
        print(f"{name}: {kept[name]['curve'][-1]}, {kept[name]['cpu_seconds']} s", flush=True)
        if chosen.save:
            save(kept)


def runs() -> Iterator[tuple[str, Protocol, tuple[str, ...]]]:
    """(protocol/algorithm/seed, protocol, overrides), seed by seed: one of each algorithm first."""
    for seed in SEEDS:
        for name, protocol in PROTOCOLS.items():
            for algorithm in protocol.algorithms.split():
                words = (f"algorithm={algorithm}", f"seed={seed}", *protocol.overrides)
                yield f"{name}/{algorithm}/{seed}", protocol, words


def measure(words: tuple[str, ...], teacher: str | None) -> dict[str, object]:
    """One run: its points {samples, accuracy, reward}, CPU-seconds, commit and date, and why it
    ended if a guard ended it."""
    measured = commit_here()  # before others move it
    taught_by = CACHE / f"{teacher}-{measured}"  # a teacher of older code is trained again
    if teacher is not None:
        train_teacher(teacher, taught_by)
        words = (*words, f"algorithm.teachers.folders={{others: {taught_by}}}")
    with TemporaryDirectory() as folder:
        path, ended = Path(folder) / "run", {}
        try:
            tandem.train(*words, "checkpoints.every=100000", f"run_dir={path}")
        except Stop as stop:  # a run that collapses has its curve up to there
            ended = {"ended": str(stop)}
        return ended | {
            "curve": list(points(read_lines(path / "metrics.jsonl"))),
            "cpu_seconds": round(read_lines(path / "timing.jsonl")[-1]["time/cpu"], 1),
            "commit": measured,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "overrides": [word.replace(str(taught_by), "RUN") for word in words],
        }


def train_teacher(name: str, folder: Path) -> None:
    """The run that serves as teacher in distillation, trained once."""
    if not (folder / "model").exists():
        tandem.train(*TEACHERS[name], "seed=0", f"run_dir={folder}")


def points(lines: list[dict]) -> Iterator[dict[str, float]]:
    for line in lines:
        found = {name.partition("/")[2]: round(line[name], 4) for name in CURVE if name in line}
        if found:
            yield {"iteration": line["iteration"], "samples": line["samples"], **found}


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def save(kept: Mapping[str, object]) -> None:
    """Replace the file atomically: a kill leaves the old or the new one."""
    beside = KEPT.with_suffix(".part")
    rows = ",\n".join(f'"{name}": {json.dumps(kept[name])}' for name in sorted(kept))
    beside.write_text(f"{{\n{rows}\n}}\n")
    beside.replace(KEPT)


if __name__ == "__main__":
    main()
