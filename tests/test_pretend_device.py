"""Whole runs on a simulated device: no CPU tensor interferes, and all numbers are equal."""

import json
from collections import Counter

import pytest
from device_runs import (
    KEPT,
    KINDS,
    PAGE,
    RUNS,
    by_function,
    here,
    on_the_device,
    page,
    write_models,
)

QUICK = ("ppo",)
SLOW = tuple(name for name in RUNS if name not in QUICK)
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The models that runs read."""
    return write_models(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def told_quickly(tmp_path_factory):
    """The reports of the quick runs, which need no model from disk. They share a process, because
    torch allows one such device in each."""
    return on_the_device(QUICK, tmp_path_factory.mktemp("none"), tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module")
def told_slowly(world, tmp_path_factory):
    return on_the_device(SLOW, world, tmp_path_factory.mktemp("device"))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_run_on_a_device_gives_the_numbers_of_the_cpu(name, told_quickly, tmp_path):
    compare(name, told_quickly[name], tmp_path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_run_on_a_device_gives_the_numbers_of_the_cpu(name, told_slowly, world, tmp_path):
    compare(name, told_slowly[name], world, tmp_path)


def compare(name, told, world, folder):
    assert "failed" not in told, told["failed"]
    metrics = here(name, world, folder)
    timed = ("time/", "perf/")
    want = {key: value for key, value in metrics.items() if not key.startswith(timed)}
    got = {key: told["metrics"].get(key) for key in want}
    # Adam's first step has the size of the rate even where a gradient is only rounding.
    assert got == pytest.approx(want, rel=0.05, abs=1e-4, nan_ok=True)
    every = json.loads(KEPT.read_text())
    assert name in every, f"run `make waits ARGS='{name}'`"
    for kind, words in KINDS.items():
        assert kind in every[name], f"run `make waits ARGS='{name}'`"
        kept, counted = Counter(every[name][kind]), by_function(told[kind])
        said = f"{words}, and not before: {dict(counted - kept)}; if meant, run `make waits`"
        assert counted.total() <= kept.total(), said  # it may move from one function to another


def test_the_page_of_waits_is_of_the_counts_that_are_kept():
    kept = json.loads(KEPT.read_text())
    assert {*QUICK} <= kept.keys() <= RUNS.keys(), "run `make waits`"
    assert PAGE.read_text(encoding="utf-8") == page(kept), "run `make waits`"


@pytest.mark.slow
def test_a_tensor_of_the_cpu_among_those_of_the_device_is_refused(told_quickly):
    told = told_quickly["mixed"]
    assert told["waits"] == told["later"] == 1
    assert (told["before"], told["arrivals"]) == (0, 4)
    assert "Mixed: aten.add.Tensor: [(2,)] on the CPU" in told["refused"]
    assert 'torch.ones(2, device="sim:0") + torch.ones(2)\n' in told["refused"]
