"""Whole runs on a GPU, where there is one: with the numbers of the CPU."""

import pytest
import torch
from device_runs import RUNS, here, write_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The models that runs read."""
    return write_models(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", RUNS)
def test_every_run_on_a_gpu_gives_the_numbers_of_the_cpu(name, world, tmp_path):
    timed = ("time/", "perf/")
    want, got = (
        {key: value for key, value in here(name, world, tmp_path / trainer, trainer).items()
         if not key.startswith(timed)}
        for trainer in ("cpu", "auto")
    )  # fmt: skip
    assert got == pytest.approx(want, rel=0.1, abs=1e-3, nan_ok=True)
