"""A custom decoupled loss: one function, one YAML, and it trains according to the formula."""

import json
from pathlib import Path

import torch
from torch.testing import assert_close

import tandem
from experiments.reward_weighted import reward_weighted
from tandem.config import build, check, compose
from tandem.types import DecoupledBatch

FOLDER = Path(__file__).parents[1] / "experiments" / "reward_weighted"
CHOSEN = (
    "plugins=[experiments.reward_weighted]", "algorithm=reward_weighted", "model=tiny_flow",
)  # fmt: skip


def test_two_files_define_it_and_a_page_says_what_it_is_for():
    files = {path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    names = {path.relative_to(FOLDER).as_posix() for path in files}
    assert names == {"README.md", "__init__.py", "conf/algorithm/reward_weighted.yaml"}


def test_its_numbers_are_keys():
    cfg = compose([*CHOSEN, "algorithm.loss.temperature=0.5"])
    check(cfg)
    assert build(cfg.algorithm).loss.keywords == {"temperature": 0.5, "most": 20.0}


def test_a_picture_one_better_counts_e_times_as_much_up_to_a_bound():
    batch = DecoupledBatch(
        error=torch.full((3, 1, 2), 2.0),
        sigma=torch.full((3, 1), 0.5),
        advantages=torch.tensor([[0.0], [1.0], [9.0]]),
        mask=torch.ones(3, 1, dtype=torch.bool),
        group=torch.zeros(3, dtype=torch.int64),
    )
    got = reward_weighted(batch, most=5.0)[:, 0]
    assert_close(got, 4 * torch.tensor([1.0, 1.0, 5.0]) * torch.tensor([1.0, 2.718282, 1.0]))


def test_it_trains(tmp_path):
    tandem.train(
        *CHOSEN, "warm_start=null", "iterations=2", "prompts_per_step=3", "group_size=4",
        "rollout.steps=4", "evaluation.every=null", "plugins=[experiments.reward_weighted,coin]",
        "reward=coin", f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    updates = [json.loads(line) for line in lines if "grad_norm" in line]
    assert len(updates) == 2 and all(line["optim/grad_norm"] > 0 for line in updates)
    assert updates[1]["actor/ref_kl"] > 0 == updates[0]["actor/ref_kl"]
