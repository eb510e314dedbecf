"""Whole runs on a GPU, where there is one: with the numbers of the CPU, and repeated exactly."""

import pytest
import torch
from device_runs import RUNS, SMALL, here, write_models
from recorded_models import RECORDED, check_equal

import tandem
from tandem.policies.language.decode_graph import RecordedStep
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


def without_times(metrics):
    return {key: x for key, x in metrics.items() if not key.startswith(("time/", "perf/"))}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_on_a_gpu_gives_the_numbers_of_the_cpu(name, world, tmp_path):
    want, got = (
        without_times(here(name, world, tmp_path / trainer, trainer)) for trainer in ("cpu", "auto")
    )
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
        return [*map(without_times, jsonl.read(tmp_path / run / "metrics.jsonl"))]

    line = (*SMALL, *own, "prompts_per_step=12")
    first, again = (
        lines(run, *line, f"run_dir={tmp_path / run}", "iterations=4") for run in ("a", "b")
    )
    lines("c", *line, f"run_dir={tmp_path / 'c'}")
    assert first == again == lines("c", f"resume={tmp_path / 'c'}", "iterations=4")


@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_step_gives_the_tokens_of_a_plain_one(kind, monkeypatch):
    recorded, init = [], RecordedStep.__init__

    def noting(self, *given):
        init(self, *given)
        recorded.append(self)

    monkeypatch.setattr(RecordedStep, "__init__", noting)
    check_equal(kind, "cuda")
    assert recorded
