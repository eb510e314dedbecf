"""Every preset teaches the embedded model something. Minutes, not seconds: `pytest -m slow`."""

import json
from pathlib import Path

import pytest
import torch

import tandem
from tandem.config import build
from tandem.sample import configuration, loaded

ROOT = Path(__file__).parents[1]
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("[!_]*.yaml"))
GIVEN = {"dpo", "ipo", "simpo", "orpo", "kto", "sft"}  # nothing is sampled
OF_FLOWS = {"dance_grpo", "flow_dppo", "flow_grpo", "grpo_guard", "mix_grpo", "tempflow_grpo"}
BUDGET = 30.0  # CPU-seconds of training
ITERATIONS = {"ppo": 40}  # of 60: a critic and four epochs cost more
# The evaluation is at both ends only, so that it stays out of the budget.
ENDS = ("evaluation.every=1000", "evaluation.pass_at=[1]")


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def trained(folder: Path, *overrides: str) -> tuple[dict, dict]:
    """The evaluations before and after; fails if the training between took too long."""
    tandem.train(*overrides, *ENDS, f"run_dir={folder}")
    spent = [line["time/cpu"] for line in lines(folder, "timing.jsonl") if "time/train" in line]
    assert spent[-1] - spent[0] < BUDGET
    evaluations = [line for line in lines(folder, "metrics.jsonl") if "eval/accuracy" in line]
    return evaluations[0], evaluations[-1]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in PRESETS if name not in GIVEN | OF_FLOWS])
def test_sampled_accuracy_rises_by_three_tenths(tmp_path, algorithm):
    before, after = trained(
        tmp_path, f"algorithm={algorithm}", "data=sort_letters",
        f"iterations={ITERATIONS.get(algorithm, 60)}", "prompts_per_step=32",
    )  # fmt: skip
    assert after["eval/accuracy"] >= before["eval/accuracy"] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(GIVEN - {"sft"}))
def test_pairs_are_told_apart_and_answers_stay_right(tmp_path, algorithm):
    before, after = trained(tmp_path, f"algorithm={algorithm}", "data=sort_pairs")
    # Without a reference the starting model tells most pairs apart already.
    assert after["eval/pair_accuracy"] >= min(before["eval/pair_accuracy"] + 0.15, 0.99)
    assert after["eval/greedy_accuracy"] >= before["eval/greedy_accuracy"] - 0.05


@pytest.mark.slow
def test_demonstrations_make_clean_answers_likelier(tmp_path):
    """Held-out ones, after noisy demonstrations."""
    short = ("algorithm=sft", "data=sort_letters", "schedule=constant", "warm_start=null")
    start, end = (
        negative_log_likelihood(tmp_path / str(iterations), *short, f"iterations={iterations}")
        for iterations in (1, 60)
    )
    assert end < 0.7 * start


@torch.no_grad()
def negative_log_likelihood(folder: Path, *overrides: str) -> float:
    """Nats per token of the right answers to the held-out prompts."""
    tandem.train(*overrides, "evaluation.every=null", f"run_dir={folder}")
    cfg = configuration(folder)
    policy, prompts = loaded(folder, cfg), build(cfg.data).eval
    rows = policy.encode(prompts, slots=range(len(prompts)))
    return float(-policy.evidence(rows, frozenset()).logp.sum() / rows.mask.sum())
