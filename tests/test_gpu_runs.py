"""Whole runs on a GPU, where there is one: with the numbers of the CPU, and repeated exactly."""

import pytest
import torch
from device_runs import RUNS, SMALL, here, write_models

import tandem
from tandem.record import jsonl

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
    # A KL to equal weights is 0 on the CPU. A GPU rounds batches of other sizes differently.
    assert got == pytest.approx(want, rel=0.1, abs=2e-3, nan_ok=True)


@pytest.mark.parametrize(
    "own",
    [
        ("algorithm=grpo",),
        ("algorithm=flow_grpo", "model=tiny_flow"),
        ("algorithm=nft", "model=tiny_flow"),
        ("algorithm=diffu_grpo", "model=tiny_masked"),
    ],
)
def test_a_run_on_a_gpu_is_repeated_and_resumed_bit_for_bit(own, tmp_path):
    def lines(run, *overrides):
        tandem.train(*overrides)
        return [
            {key: x for key, x in line.items() if not key.startswith(("time/", "perf/", "memory/"))}
            for line in jsonl.read(tmp_path / run / "metrics.jsonl")
        ]

    line = (*SMALL, *own, "prompts_per_step=12")
    first, again = (
        lines(run, *line, f"run_dir={tmp_path / run}", "iterations=4") for run in ("a", "b")
    )
    lines("c", *line, f"run_dir={tmp_path / 'c'}")
    assert first == again == lines("c", f"resume={tmp_path / 'c'}", "iterations=4")
