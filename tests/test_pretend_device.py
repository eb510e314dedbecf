"""Whole runs on a device that is none: no tensor of the CPU is in the way, no number another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tandem

PROGRAM = Path(__file__).with_name("pretend_device.py")
SMALL = (
    "iterations=2", "prompts_per_step=4", "evaluation.every=null", "checkpoints.every=2",
    "warm_start=null", "guards.no_signal=100",
)  # fmt: skip
WORDS = ("reward=target_length", "reward.target_length.function.target=5")
LORA = "model.lora={r: 4, alpha: 8, target_modules: all-linear}"
PAINTED = (
    "model=tiny_flow", "reward=colour_share", "group_size=4", "rollout.steps=4",
    "num_minibatches=1",
)  # fmt: skip
RUNS = {
    "grpo": (*WORDS, "algorithm=grpo", LORA, "model.gradient_checkpointing=true"),
    "dapo": (*WORDS, "algorithm=dapo", "model.packing=true", "model.logit_budget=400"),
    "ppo": (*WORDS, "algorithm=ppo"),
    "dpo": ("algorithm=dpo", "data=sort_pairs"),
    "flow_grpo": (*PAINTED, "algorithm=flow_grpo"),
    "nft": (*PAINTED, "algorithm=nft", "model/ema=power", "evaluation.weights=ema"),
}
# One call of the program at a time: torch knows one pretended device in a process.
pytestmark = [pytest.mark.slow, pytest.mark.system]


def pretended(overrides):
    """The last metrics, and how often each line waited for the device."""
    command = [sys.executable, str(PROGRAM), *overrides]
    ended = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr[-3000:]
    line = next(line for line in ended.stdout.splitlines() if line.startswith("TOLD "))
    return json.loads(line.removeprefix("TOLD "))


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_on_a_device_gives_the_numbers_of_the_cpu(name, tmp_path):
    chosen = (*SMALL, *RUNS[name])
    told = pretended((*chosen, f"run_dir={tmp_path / 'device'}"))
    here = tandem.train("trainer=cpu", *chosen, f"run_dir={tmp_path / 'cpu'}").metrics
    timed = ("time/", "perf/")
    want = {key: value for key, value in here.items() if not key.startswith(timed)}
    got = {key: told["metrics"].get(key) for key in want}
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6, nan_ok=True)
    assert told["waits"]  # some are needed, as for the verdict on a gradient


def test_a_tensor_of_the_cpu_among_those_of_the_device_is_refused():
    program = (
        "import pretend_device as p, torch\n"
        "p.register()\n"
        "with p.Device():\n"
        "    torch.ones(2, device='sim:0') + torch.ones(())\n"
        "    torch.ones(2, device='sim:0') + torch.ones(2)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PROGRAM.parent
    )
    assert "Mixed: aten.add.Tensor: [(2,)] on the CPU" in ended.stderr and "line 5" in ended.stderr
