"""The seconds of a run, over all its starts and devices."""

import time
from dataclasses import replace
from pkgutil import resolve_name

import pytest
import torch
from toy_run import ITERATIONS, SETTINGS, run

from tandem.record import jsonl
from tandem.record.reading.runs import read
from tandem.training.callbacks.recording import accumulate_times, peak_memory


def test_a_second_start_adds_to_what_the_first_one_took():
    before = {"time/total": 100.0, "time/cpu": 250.0, "time/gpu": 400.0}
    assert accumulate_times(before, seconds=10.0, processor=3.0, gpus=4) == {
        **{"time/total": 110.0, "time/cpu": 253.0, "time/gpu": 440.0}
    }


def test_a_run_without_a_gpu_has_no_gpu_seconds_and_keeps_those_it_had():
    nothing = dict.fromkeys(("time/total", "time/cpu", "time/gpu"), 0.0)
    spent = accumulate_times(nothing, seconds=10.0, processor=3.0, gpus=0)
    assert spent == {"time/total": 10.0, "time/cpu": 3.0}
    assert accumulate_times({**nothing, "time/gpu": 7.0}, seconds=1.0, processor=1.0, gpus=0) == {
        **{"time/total": 1.0, "time/cpu": 1.0, "time/gpu": 7.0}
    }


def test_memory_is_that_of_the_device_that_trains(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 7 * device.index)
    assert peak_memory(torch.device("cuda", 1)) == 7
    assert peak_memory(torch.device("cpu")) > 2**20  # of this process, beside a GPU that rests


def test_a_resumed_run_goes_on_counting_from_the_checkpoint(tmp_path):
    with pytest.raises(SystemExit):
        run(tmp_path, dies_at=3)
    kept = jsonl.read(tmp_path / "timing.jsonl")[:2]  # up to the checkpoint
    run(tmp_path, resume=True)
    timing = jsonl.read(tmp_path / "timing.jsonl")
    assert timing[:2] == kept
    assert [line["iteration"] for line in timing] == [*range(ITERATIONS + 1)]
    for name in ("time/total", "time/cpu"):
        spent = [line[name] for line in timing]
        assert spent == sorted(spent)
        assert spent[0] > 0
        assert len({*spent}) == len(spent)
    assert not any("time/gpu" in line for line in timing)


def test_weights_are_placed_at_the_time_at_which_they_were_reached(tmp_path, monkeypatch):
    """On a clock by which an iteration takes 10 s of the updates and an evaluation 1000 s."""
    clock = [0.0]
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: clock[0])
    takes(monkeypatch, "tandem.training.module.PostTraining.training_step", 10, clock)
    takes(monkeypatch, "tandem.training.callbacks.evaluating.Evaluating.measure", 1000, clock)
    run(tmp_path, evaluation=replace(SETTINGS, every=3))
    (tmp_path / "config.yaml").write_text(f"seed: 0\niterations: {ITERATIONS}\n")
    found = read(tmp_path)
    for axis in ("seconds", "cpu_seconds"):
        assert found.curve("eval/accuracy", axis).x.tolist() == [0, 1030, 2060]
        assert found.curve("samples", axis).x.tolist() == [0, 1010, 1020, 1030, 2040, 2050, 2060]
    total = [line["time/total"] for line in jsonl.read(tmp_path / "timing.jsonl")]
    assert total == [1010, 1020, 1030, 2040, 2050, 2060, 3060]


def takes(monkeypatch, name: str, seconds: float, clock: list[float]) -> None:
    """Let a method take seconds of this clock."""
    owner, method = name.rsplit(".", 1)
    own = getattr(resolve_name(owner), method)

    def timed(*given, **options):
        found = own(*given, **options)
        clock[0] += seconds
        return found

    monkeypatch.setattr(name, timed)
