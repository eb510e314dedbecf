"""The reference fixture: six samples of at most five steps, with garbage outside the mask."""

import json
import os
import socket
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

torch.set_num_threads(1)


class Vectors(dict):
    """Published and independently computed values by name; read as float64 tensors."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.tensor(super().__getitem__(name), dtype=torch.float64)


@pytest.fixture(scope="session")
def vectors() -> Vectors:
    return Vectors(json.loads((Path(__file__).parent / "vectors" / "llm.json").read_text()))


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
