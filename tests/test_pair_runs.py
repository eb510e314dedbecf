"""Whole runs on pairs: built once, measured when held out, and equal at a second start."""

import json
from pathlib import Path

import pytest

import tandem

FEW = (
    "algorithm=dpo", "data=sort_pairs", "data.pairs=20", "data.held_out=2", "~recipe",
    "warm_start=null", "iterations=2", "prompts_per_step=4", "evaluation.prompts=10",
    "evaluation.pass_at=[1]", "evaluation.every=1", "evaluation.samples=1", "optimizer.lr=1e-3",
)  # fmt: skip


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    tandem.train(*FEW, f"run_dir={folder / 'run'}", f"cache_dir={folder / 'cache'}")
    return folder


def test_held_out_pairs_are_measured_beside_the_training_ones(place):
    first, second, last = lines(place / "run")
    assert first["eval/pair_accuracy"] == 0.5
    assert first["eval/pair_margin"] == 0.0
    assert last["eval/pair_margin"] > 0
    assert second["preference/margin"] > first["preference/margin"] == 0.0
    assert second["samples"] == 8


def test_what_the_starting_model_said_is_read_the_second_time(place, capsys):
    (kept,) = (place / "cache" / "pairs").glob("*.jsonl")
    rows = [json.loads(row) for row in kept.read_text().splitlines()]
    assert all(row["chosen"] == row["answer"] != row["rejected"] for row in rows)
    assert len(rows) > 20  # including those of held-out prompts
    before = kept.stat().st_mtime_ns
    tandem.train(*FEW, f"run_dir={place / 'again'}", f"cache_dir={place / 'cache'}")
    assert kept.stat().st_mtime_ns == before
    assert (place / "again" / "metrics.jsonl").read_bytes() == (
        place / "run" / "metrics.jsonl"
    ).read_bytes()


def test_a_finished_run_is_measured_again_against_its_own_beginning(place):
    result = tandem.train("evaluate=true", f"resume={place / 'run'}")
    last = lines(place / "run")[-1]
    for name in ("eval/pair_accuracy", "eval/pair_margin"):
        assert result.metrics[name] == pytest.approx(last[name], abs=1e-6)


def test_kto_leaves_out_answers_that_fit_their_own_question_alone(tmp_path):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    asked = {"ba>": "ab", "a" * 40 + ">": "a", "j>": "j" * 50}
    rows = [{"prompt": q, "chosen": a, "rejected": a + "b"} for q, a in asked.items()]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out.write_text(json.dumps({"prompt": "gb>", "answer": "bg"}))
    tandem.train(
        *FEW[4:], "algorithm=kto", "data=jsonl", f"data.path={train}",
        f"data.eval_path={held_out}", f"run_dir={tmp_path / 'run'}", "prompts_per_step=3",
        "iterations=6",  # in one of them the long question follows the long answers
    )  # fmt: skip
    left_out = (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    assert ["has 41 tokens and up to 3 in an answer" in row for row in left_out] == [True]
