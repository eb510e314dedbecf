"""The README's example of a new algorithm: one function, one YAML, and it trains."""

import json
from pathlib import Path

import pytest
import torch
from ladder import FEW
from losses.every_loss import random_batch
from torch.testing import assert_close

import tandem
from tandem.config import build, check, compose
from tandem.config.trust import digest
from tandem.losses.soft_clip import cispo

FOLDER = Path(__file__).parents[1] / "experiments" / "my_idea"
CHOSEN = ("plugins=[experiments.my_idea]", "algorithm=my_idea")
QUICK = (
    *CHOSEN, *FEW, "warm_start=null", "iterations=2", "prompts_per_step=4", "group_size=4",
    "num_minibatches=2", "evaluation.prompts=4", "evaluation.pass_at=[1]", "evaluation.every=null",
    "guards.no_signal=9", "reward=target_length", "reward.target_length.function.target=5",
)  # fmt: skip


def test_two_files_define_it_and_a_page_says_what_it_is_for():
    files = {path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    names = {path.relative_to(FOLDER).as_posix() for path in files}
    assert names == {"README.md", "__init__.py", "conf/algorithm/my_idea.yaml"}


def test_its_number_is_a_key_and_it_beats_no_option_of_tandems():
    cfg = compose([*CHOSEN, "algorithm.loss.most=3"])
    check(cfg)
    loss = build(cfg.algorithm).loss
    assert loss.keywords == {"most": 3.0}
    other = compose(["plugins=[experiments.my_idea]", "~recipe", "algorithm/loss=my_idea"])
    assert other.algorithm.loss._target_ == "experiments.my_idea.my_idea"
    assert other.choices.algorithm == "grpo"


@pytest.mark.parametrize("most", [1.2, 5.0])
def test_its_gradient_is_that_of_cispo(most):
    mine = build(compose([*CHOSEN, f"algorithm.loss.most={most}"]).algorithm).loss
    gradients = []
    for loss in (mine, lambda batch: cispo(batch, ratio_max=most)):
        batch = random_batch()
        gradients += torch.autograd.grad(loss(batch).sum(), batch.logp)
    assert_close(*gradients, rtol=1e-12, atol=0)
    assert (gradients[0] != 0).any()


def test_it_trains_as_cispo_does(tmp_path):
    runs = {}
    for algorithm in ("my_idea", "cispo"):
        choice = (f"algorithm={algorithm}", "~recipe", f"run_dir={tmp_path / algorithm}")
        tandem.train(*QUICK, *choice)
        text = (tmp_path / algorithm / "metrics.jsonl").read_text()
        runs[algorithm] = [json.loads(line) for line in text.splitlines() if "grad_norm" in line]
    (started,) = json.loads((tmp_path / "my_idea" / "manifest.json").read_text())["starts"]
    sha = digest([FOLDER / "__init__.py", FOLDER.parent / "__init__.py"])  # all that importing runs
    assert started["code"]["plugins"] == {"experiments.my_idea": sha}
    mine, theirs = runs["my_idea"], runs["cispo"]
    assert len(mine) == 2
    assert all(line["optim/grad_norm"] > 0 for line in mine)
    for own, other in zip(mine, theirs, strict=True):
        assert own.items() <= other.items()  # CISPO has a metric of its own
