"""Whole runs on one process, two copies (DDP) and two shards (FSDP2), resumable by any."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from ladder import FEW
from safetensors.torch import load_file
from two_ranks import on_two_ranks

import tandem
from tandem.policies.language.tiny_lm import tiny_lm

QUICK = (
    "warm_start=null", "~recipe", "prompts_per_step=3", "group_size=4", "num_minibatches=2",
    "evaluation.every=null", "guards.no_signal=9", "checkpoints.every=2", "schedule=constant",
    "trainer.accelerator=cpu", "max_tokens_per_microbatch=null", "micro_batch_size=5",
)  # fmt: skip
KINDS = {
    "tokens": (*FEW, "algorithm=grpo", "reward=target_length",
        "reward.target_length.function.target=5", "algorithm.kl.coef=0.1",
        "model.lora={r: 2, alpha: 4, target_modules: all-linear}"),
    "taught": (*FEW, "algorithm=gkd", "reward=target_length", "group_size=4",
        "reward.target_length.function.target=5", "num_minibatches=2",
        "algorithm.teachers.folders={others: ROOT/teacher}"),
    "pictures": ("model=tiny_flow", "algorithm=nft", "reward=colour_share", "rollout.steps=3",
        "model.adapter.channels=[16,16]", "model/ema=constant", "model.ema.decay=0.5",
        "optimizer.lr=1e-3"),
}  # fmt: skip
ON = {
    "cpu": ("trainer=cpu",),
    **{
        name: (f"trainer={name}", "trainer.devices=2", "trainer.accelerator=cpu")
        for name in ("ddp", "fsdp2")
    },
}
# Which trainer resumes which run.
FUTURES = {
    "ddp": ("cpu", "fsdp2"),
    "fsdp2": ("cpu", "ddp", "fsdp2"),
    "cpu": ("fsdp2",),
}


def begin(folder: str, kind: str, trainer: str) -> None:
    tandem.train(*words_of(folder, kind), *ON[trainer], f"run_dir={folder}", "iterations=2")


def words_of(folder: str | Path, kind: str) -> list[str]:
    return [*QUICK, *(word.replace("ROOT", str(Path(folder).parent)) for word in KINDS[kind])]


def go_on(folder: str, trainer: str) -> None:
    tandem.train(f"resume={folder}", *ON[trainer], "iterations=4")


def lines(folder: Path) -> list[dict]:
    """The lines of the iterations; the last one is the final one."""
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()][:-1]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        str(file.relative_to(folder)) + name: tensor
        for file in sorted((folder / "model").rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.fixture(scope="module", params=KINDS)
def runs(request, tmp_path_factory) -> Path:
    """Folders `trainer` of two iterations and `trainer then trainer` of four, and `straight`."""
    root, kind = tmp_path_factory.mktemp("runs"), request.param
    for part in tiny_lm(seed=1, hidden_size=32) if kind == "taught" else ():
        part.save_pretrained(root / "teacher")
    begin(root / "cpu", kind, "cpu")
    straight = root / "straight"
    tandem.train(*words_of(straight, kind), *ON["cpu"], f"run_dir={straight}", "iterations=4")
    jobs = {t: partial(begin, str(root / t), kind, t) for t in ("ddp", "fsdp2")}
    on_two_ranks(jobs)
    later = {f"{a} then {b}": b for a, others in FUTURES.items() for b in others}
    for name in later:
        shutil.copytree(root / name.split()[0], root / name)
    on_two_ranks({n: partial(go_on, str(root / n), b) for n, b in later.items() if b != "cpu"})
    for name, trainer in later.items():
        if trainer == "cpu":
            go_on(root / name, trainer)
    return root


@pytest.mark.slow
def test_any_number_of_ranks_writes_one_record_and_goes_on_with_anothers_run(runs):
    want, learnt = lines(runs / "straight"), weights(runs / "straight")
    assert len(want) == 4
    for folder in sorted(folder for folder in runs.iterdir() if folder.name != "teacher"):
        found = lines(folder)
        assert len(found) == (4 if "then" in folder.name or folder.name == "straight" else 2)
        for got, line in zip(found, want, strict=False):
            assert got == pytest.approx(line, rel=1e-4, abs=1e-6), folder.name
        if len(found) == 4:
            ends = weights(folder)
            assert ends.keys() == learnt.keys()
            assert max((ends[n] - learnt[n]).abs().max() for n in learnt) < 1e-5, folder.name
