"""The device of a reward network: that of its rank."""

import pytest
import torch

from tandem.launch import devices
from tandem.launch.devices import device_of_rank
from tandem.rewards.networks import Hosting, trains_on
from tandem.settings.settings import Devices


def trainer(asked, accelerator="auto"):
    return Devices(
        accelerator=accelerator, devices=asked, num_nodes=1, strategy="auto", precision="32-true"
    )


@pytest.mark.parametrize(
    ("asked", "rank", "place"),
    [([1], 0, "cuda:1"), ([2, 3], 1, "cuda:3"), (2, 1, "cuda:1"), ("auto", 3, "cuda:3")],
)
def test_a_rank_is_on_the_device_that_lightning_gives_it(monkeypatch, asked, rank, place):
    monkeypatch.setattr(devices, "gpus", lambda trainer: 4)
    assert device_of_rank(trainer(asked), rank) == torch.device(place)


def test_a_variable_of_a_surrounding_job_is_no_rank_of_a_run_with_one(monkeypatch):
    monkeypatch.setattr(devices, "gpus", lambda trainer: 4)
    assert device_of_rank(trainer([1]), 3) == torch.device("cuda:1")


def test_auto_is_the_device_of_the_run_and_another_name_that_device():
    """The meta device stands for a GPU."""
    numbers = {"batch_size": 1, "dtype": "float32"}
    with trains_on(torch.device("meta")):
        auto, named = (Hosting(**numbers, device=name) for name in ("auto", "cpu"))
    assert auto.place == torch.device("meta")  # also after the run has been built
    assert named.place == torch.device("cpu")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    assert Hosting(**numbers, device="auto").place == torch.device(there)
