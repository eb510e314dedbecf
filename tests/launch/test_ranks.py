"""Processes that torchrun or srun started for one run, before their process group exists."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import accelerators
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from omegaconf import OmegaConf

from tandem import distributed
from tandem.config import ConfigError
from tandem.launch import ranks
from tandem.launch.devices import describe_device
from tandem.launch.ranks import check_nodes, check_run_dir, join_ranks, make_on_first
from tandem.launch.trainer import STRATEGIES, environment_of
from tandem.settings.settings import Devices

PLACES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
CPU = {"accelerator": "cpu", "precision": "32-true"}
ONE = Devices(devices=1, num_nodes=1, strategy="auto", **CPU)
TWO = Devices(devices=2, num_nodes=1, strategy="ddp", **CPU)
FOUR = Devices(devices=2, num_nodes=2, strategy="ddp", **CPU)
HERE = ("algorithm=grpo", "run_dir=runs/one")


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    for name in [name for name in os.environ if name in PLACES or name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # undoes what join_ranks writes


@pytest.fixture
def srun():
    def start(*, tasks: int, task: int, local: int = 0) -> None:
        os.environ.update(SLURM_NTASKS=str(tasks), SLURM_PROCID=str(task), SLURM_LOCALID=str(local))
        os.environ.update(SLURM_NTASKS_PER_NODE="2", SLURM_JOB_ID="7", SLURM_STEP_ID="0")

    return start


def torchrun(*, processes: int, local: int, rank: int = 0) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % local), TORCHELASTIC_RUN_ID="none")
    os.environ.update(WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(local))


@pytest.mark.parametrize("task", range(4))
def test_one_task_of_srun_is_the_first_rank(srun, task):
    srun(tasks=4, task=task, local=task % 2)
    join_ranks(FOUR)
    assert distributed.is_first() == (task == 0)
    (environment,) = environment_of(FOUR)
    assert isinstance(environment, SLURMEnvironment) and not environment.auto_requeue


def test_the_first_process_of_a_second_node_is_not_the_first_rank(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert distributed.is_first()
    monkeypatch.setenv("NODE_RANK", "1")  # as set by Lightning
    assert not distributed.is_first()
    monkeypatch.delenv("NODE_RANK")
    monkeypatch.setenv("RANK", "8")  # as set by torchrun
    assert not distributed.is_first()


def test_a_job_of_one_task_starts_its_own_ranks(srun):
    srun(tasks=1, task=0)
    join_ranks(TWO)
    (environment,) = environment_of(TWO)
    assert isinstance(environment, LightningEnvironment)
    assert "RANK" not in os.environ


def test_a_batch_script_that_starts_the_run_itself_has_the_tasks_of_no_srun(srun):
    srun(tasks=2, task=0)
    del os.environ["SLURM_STEP_ID"]  # the rest is set in the script too
    join_ranks(TWO)
    (environment,) = environment_of(TWO)
    assert isinstance(environment, LightningEnvironment)
    assert "RANK" not in os.environ


@pytest.mark.parametrize("more", ["RANK", "NODE_RANK"])
def test_a_batch_script_starts_a_run_on_several_nodes_by_srun(srun, more, monkeypatch):
    srun(tasks=4, task=0)
    del os.environ["SLURM_STEP_ID"]
    with pytest.raises(ConfigError, match=r"trainer\.num_nodes=2: .* srun --ntasks-per-node=2"):
        check_nodes(FOUR)
    monkeypatch.setenv(more, "0")  # by torchrun, or by hand
    check_nodes(FOUR)


def test_tasks_that_run_for_themselves_are_all_first(srun):
    srun(tasks=4, task=3)  # srun --ntasks=4 bash -c 'python train.py seed=$SLURM_PROCID'
    join_ranks(ONE)
    assert distributed.is_first()
    assert isinstance(environment_of(ONE)[0], LightningEnvironment)


def test_other_tasks_than_ranks_are_one_line_with_the_flags(srun):
    srun(tasks=3, task=0)
    with pytest.raises(
        ConfigError, match=r"srun started 3 tasks, but trainer\.devices=2 .* mean 2"
    ):
        join_ranks(TWO)


@pytest.mark.parametrize(
    ("devices", "processes", "local", "said"),
    [
        (ONE, 2, 2, r"2 processes .* mean 1 ranks; .* trainer\.devices=2 and trainer\.num_nodes=1"),
        (TWO, 4, 2, r"4 processes .* mean 2 ranks; .* trainer\.devices=2 and trainer\.num_nodes=2"),
        (TWO, 1, 1, r"1 processes .* mean 2 ranks; .* trainer\.devices=1 and trainer\.num_nodes=1"),
    ],
)
def test_other_processes_than_ranks_are_one_line_with_the_keys(devices, processes, local, said):
    torchrun(processes=processes, local=local, rank=processes - 1)
    with pytest.raises(ConfigError, match=f"^{said}"):
        join_ranks(devices)


def test_torchrun_starts_the_ranks_of_a_run():
    torchrun(processes=4, local=2)
    join_ranks(FOUR)
    torchrun(processes=1, local=1)
    join_ranks(ONE)
    join_ranks(TWO, evaluates=True)  # one process, whatever trained it


def test_the_only_pod_of_a_job_starts_its_own_ranks(monkeypatch):
    os.environ.update(RANK="0", WORLD_SIZE="1")  # as set by a cluster that counts machines
    join_ranks(TWO)
    (environment,) = environment_of(TWO)
    assert isinstance(environment, LightningEnvironment)
    os.environ.update(LOCAL_RANK="1", NODE_RANK="0", WORLD_SIZE="2")  # by Lightning, for the second
    join_ranks(TWO)
    job = OmegaConf.create({"hydra": {"runtime": {"output_dir": "runs/clock"}}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", job)
    check_run_dir(TWO, Path("runs/clock"), ())


SHARED = r"^run_dir: each of the {} processes .*run_dir=runs/NAME"


def test_processes_need_one_directory_for_all(srun):
    srun(tasks=2, task=1, local=1)
    join_ranks(TWO)
    with pytest.raises(ConfigError, match=SHARED.format(2)):
        check_run_dir(TWO, Path("runs/clock"), ("algorithm=grpo",))
    check_run_dir(TWO, Path("runs/one"), HERE)
    check_run_dir(TWO, Path("runs/one"), ("resume=runs/one",))


def test_ranks_that_the_first_one_starts_get_its_directory_from_hydra_alone(monkeypatch):
    with pytest.raises(ConfigError, match=SHARED.format(2)):
        check_run_dir(TWO, Path("runs/clock"), ())  # tandem.train of a script
    job = OmegaConf.create({"hydra": {"runtime": {"output_dir": "runs/clock"}}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", job)
    check_run_dir(TWO, Path("runs/clock"), ())
    with pytest.raises(ConfigError, match=SHARED.format(2)):
        check_run_dir(TWO, Path("runs/other"), ())  # in a Hydra job of the user
    with pytest.raises(ConfigError, match=SHARED.format(4)):
        check_run_dir(FOUR, Path("runs/clock"), ())  # a command on each node
    check_run_dir(FOUR, Path("runs/one"), HERE)
    check_run_dir(ONE, Path("runs/other"), ())


def test_an_evaluation_is_one_process(srun, monkeypatch):
    said = r"^evaluate=true is one process on one device, but 2 were started; leave torchrun"
    for task in (0, 1):
        srun(tasks=2, task=task, local=task)
        with pytest.raises(ConfigError, match=said):
            join_ranks(TWO, evaluates=True)
    monkeypatch.setenv("RANK", "1")  # as set by torchrun
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=said):
        join_ranks(ONE, evaluates=True)
    monkeypatch.delenv("RANK")
    join_ranks(ONE, evaluates=True)  # one task of many that run for themselves


def test_tasks_of_no_known_node_are_one_line_with_the_flag(srun):
    srun(tasks=4, task=0)
    del os.environ["SLURM_NTASKS_PER_NODE"]  # srun --ntasks=4, which Lightning refuses
    with pytest.raises(ConfigError, match=r"^srun --ntasks=4: write --ntasks-per-node=2"):
        join_ranks(FOUR)


def test_others_wait_until_the_first_rank_has_made_it(tmp_path, monkeypatch):
    place = tmp_path / "made"
    make_on_first(place, place.mkdir, patience=None)
    monkeypatch.setenv("RANK", "1")
    make_on_first(place, pytest.fail, patience=None)
    late = tmp_path / "late"
    threading.Timer(0.3, late.mkdir).start()
    make_on_first(late, pytest.fail, patience=30.0)
    assert late.is_dir()


def test_who_waits_for_nothing_is_told_after_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "PAUSE", 0.01)
    monkeypatch.setenv("RANK", "1")
    growing = tmp_path / "never.of-another-process"
    growing.mkdir()
    with pytest.raises(ConfigError, match=r"did not write it within 0\.1 s .guards.stalled_after."):
        make_on_first(tmp_path / "never", pytest.fail, patience=0.1)


def test_the_device_of_a_run_is_named(monkeypatch):
    automatic = replace(TWO, accelerator="auto")
    monkeypatch.setattr(accelerators.MPSAccelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert describe_device(automatic, 0) == f"cpu: torch {torch.__version__} finds no GPU"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: f"GPU {place.index}")
    assert describe_device(automatic, 1) == "cuda:1, GPU 1"
    assert describe_device(TWO, 1) == "cpu"  # as asked for
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(accelerators.MPSAccelerator, "is_available", lambda: True)
    assert describe_device(automatic, 0) == "mps"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_ranks_wait_for_one_another_as_long_as_is_said(strategy):
    devices = Devices(devices=2, num_nodes=1, strategy=strategy, timeout=7200.0, **CPU)
    made = STRATEGIES[strategy](devices)
    assert made._timeout.total_seconds() == 7200
