"""Whole runs on pairs: made once, measured when held out, the same at a second start."""

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
    (kept,) = (place / "cache" / "pairs").iterdir()
    rows = [json.loads(row) for row in kept.read_text().splitlines()]
    assert all(row["chosen"] == row["answer"] != row["rejected"] for row in rows)
    assert len(rows) > 20  # of the held-out prompts too
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
