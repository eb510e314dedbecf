"""A sweep as a user types it: the contents of its offline runs, read by W&B's own command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ladder import FEW
from wandb_files import inspect, of_type, tables

import tandem

ROOT = Path(__file__).parents[2]
IN_VARIABLE, IN_URL = "canary1x7f3a90", "canary2x7f3a90"

# The gate tests sweeps and W&B's files separately: tests/sweep, test_wandb_mirror.py.
pytestmark = [pytest.mark.slow, pytest.mark.system]


QUICK = (
    *FEW, "algorithm=rloo", "warm_start=null", "iterations=1", "prompts_per_step=2",
    "num_minibatches=1", "evaluation.every=1", "evaluation.prompts=2", "evaluation.samples=2",
    "evaluation.pass_at=[1]", "threads=1",
    f"rollout.stop=['{IN_VARIABLE}','https://me:{IN_URL}@example.org/x']",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sweeps") / "two_seeds"
    words = [
        *("-m", "seed=0,1", f"sweep_dir={folder}", *QUICK),
        *("logger=wandb", "logger.wandb.mode=offline"),
        f"logger.wandb.tags=[mine,{IN_VARIABLE}]",
    ]
    environment = {**os.environ, "SOME_API_KEY": IN_VARIABLE, "HOME": str(folder.parent)}
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=ROOT, env=environment, check=True, timeout=600, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 finished, of 2 runs" in done.stdout
    return sorted(path.parent for path in folder.glob("*/manifest.json"))


@pytest.fixture(scope="module")
def records(runs) -> list[list[dict]]:
    return [inspect(folder) for folder in runs]


@pytest.fixture(scope="module")
def begun(records) -> list[dict]:
    return [of_type("run", found)[0] for found in records]


def test_a_job_of_a_sweep_writes_what_the_run_alone_writes(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", IN_VARIABLE)  # secrets are hidden the same way
    tandem.train("seed=0", *QUICK, f"run_dir={tmp_path}")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (runs[0] / name).read_bytes() == (tmp_path / name).read_bytes()


def test_seeds_share_a_group(begun):
    (group,) = {run["run_group"] for run in begun}
    assert group.startswith("two_seeds-tiny_lm-rloo ")


def test_they_hold_job_type_tags_and_choices(begun):
    for seed, run in enumerate(begun):
        config = run["config"]["update"]
        assert {
            **{"model": "tiny_lm", "dynamics": "autoregressive", "data": "sort_ladder"},
            **{"algorithm": "rloo", "reward": "exact_match", "sweep": "two_seeds", "seed": seed},
        }.items() <= config.items()
        assert config["settings"]["prompts_per_step"] == 2
        assert run["job_type"] == "train"
        assert {"rloo", "tiny_lm", "exact_match", "mine"} <= {*run["tags"]}


def test_they_hold_every_axis_and_the_samples_of_every_evaluation(records):
    for found in records:
        assert {one.get("name") for one in of_type("metric", found)} >= {
            *("iteration", "samples", "tokens"),
            *("time/reached", "time/reached_cpu", "time/reached_gpu"),
        }
        rows = [one["item"] for one in of_type("history", found)]
        assert [row["iteration"] for row in rows] == [0, 1]
        assert all(
            {"samples", "tokens", "time/reached", "time/reached_cpu"} <= {*row} for row in rows
        )
        seen = tables("samples/evaluation", found)
        assert [{row["iteration"] for row in table} for table in seen] == [{0}, {1}]


def test_no_secret_is_in_any_of_their_files(runs):
    files = [path for folder in runs for path in folder.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".wandb" for path in files) == 2
    leaks = {
        path.name
        for path in files
        for secret in (IN_VARIABLE, IN_URL)
        if secret.encode() in path.read_bytes()
    }
    assert leaks == set()


def test_one_command_finds_all_of_them(runs):
    """The command of docs/wandb.md, which lists what it would upload."""
    (line,) = [
        line.strip()
        for line in (ROOT / "docs" / "wandb.md").read_text().splitlines()
        if line.startswith("    find runs")
    ]
    command = line.replace("find runs", f"find {runs[0].parent}").replace(
        "wandb sync", f"{sys.executable} -m wandb sync --dry-run --verbose"
    )
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True, cwd=runs[0].parent
    )
    said = done.stdout + done.stderr
    assert "Would sync 2 run(s)" in said
    assert all(folder.name in said for folder in runs)
