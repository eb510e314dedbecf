"""An evaluation on its own: files beside the record, and a separate run in mirrors."""

import json
import math

import pytest
import wandb
from wandb_files import inspect, of_type, tables

from tandem.record import jsonl
from tandem.record.evaluation_record import EvaluationRecord
from tandem.record.mirrors import Csv, TensorBoard
from tandem.record.wandb_mirror import Wandb

CONFIG = "seed: 3\nchoices: {algorithm: grpo, model: tiny_lm}\njudge: {api_key: swordfish7}\n"
ROW = {"kind": "eval", "source": "s", "prompt": "p", "output": "o", "answer": "a", "reward": 1.0}
ROW |= {"length": 3}


def test_its_numbers_and_rows_lie_beside_the_record(tmp_path):
    found = EvaluationRecord(run_dir=tmp_path / "run", split="test", config=CONFIG)
    found.write(40, {"eval/accuracy": 0.5}, [ROW])
    kept = json.loads((tmp_path / "run" / "evaluation_test.json").read_text())
    assert kept == {"iteration": 40, "eval/accuracy": 0.5}
    assert jsonl.read(tmp_path / "run" / "evaluation_test.jsonl") == [ROW]
    assert not (tmp_path / "run" / "evaluation_test").exists()


def test_a_metric_without_a_value_is_null_for_json_has_no_nan(tmp_path):
    found = EvaluationRecord(run_dir=tmp_path, split="test", config=CONFIG)
    found.write(40, {"eval/accuracy": math.nan, "eval/length": 3.0}, [ROW])
    kept = (tmp_path / "evaluation_test.json").read_text()
    refused = {"parse_constant": lambda text: pytest.fail(f"{text} is not JSON")}
    found = json.loads(kept, **refused)
    assert found == {"iteration": 40, "eval/accuracy": None, "eval/length": 3.0}


@pytest.mark.system
def test_elsewhere_it_is_a_run_of_its_own_in_the_group_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    table = tmp_path / "run" / "metrics.csv"  # of the training, which stays unchanged
    table.parent.mkdir()
    table.write_text("iteration\n0\n")
    mirrors = [Wandb(project="p", mode="offline"), Csv()]
    found = EvaluationRecord(run_dir=tmp_path / "run", split="test", config=CONFIG, mirrors=mirrors)
    found.write(40, {"eval/accuracy": 0.5}, [ROW])
    wandb.teardown()
    own = tmp_path / "run" / "evaluation_test"
    records = inspect(own)
    (begun, *_) = of_type("run", records)
    assert (begun["job_type"], begun["run_group"]) == ("evaluate", "tiny_lm-grpo")
    assert begun["display_name"] == "run evaluation_test"
    assert "swordfish7" not in json.dumps(records)
    (row,) = [one["item"] for one in of_type("history", records)]
    assert (row["iteration"], row["_step"], row["eval/accuracy"]) == (40, 40, 0.5)
    assert [r["output"] for r in tables("samples/evaluation", records)[0]] == ["o"]
    assert (own / "metrics.csv").read_text().split() == ["iteration,eval/accuracy", "40,0.5"]
    assert table.read_text() == "iteration\n0\n"


def test_tensorboard_shows_every_evaluation_of_a_split(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for at in (20, 40):
        mirrors = [TensorBoard()]
        found = EvaluationRecord(run_dir=tmp_path, split="test", config=CONFIG, mirrors=mirrors)
        found.write(at, {"eval/accuracy": at / 80}, [ROW])
    events = accumulator.EventAccumulator(str(tmp_path / "evaluation_test" / "tensorboard"))
    events.Reload()
    assert [(x.step, x.value) for x in events.Scalars("eval/accuracy")] == [(20, 0.25), (40, 0.5)]
