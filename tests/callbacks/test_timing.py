"""The seconds of a run, over all its starts and devices."""

import pytest
from toy_run import ITERATIONS, run

from tandem.record import jsonl
from tandem.training.callbacks.recording import accumulate_times


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
