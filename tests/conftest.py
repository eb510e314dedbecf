"""The reference fixture: six samples of at most five steps, with garbage outside the mask."""

import json
import os
import socket
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

torch.set_num_threads(1)


class Vectors(dict):
    """Published and independently computed values by name; read as float64 tensors."""

    read: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.tensor(self.plain(name), dtype=torch.float64)

    def plain(self, name: str) -> list | float:
        """As it stands in the file: some are no tensors."""
        self.read.add(name)
        return super().__getitem__(name)


@pytest.fixture(scope="session")
def vectors() -> Vectors:
    return Vectors(json.loads((Path(__file__).parent / "vectors" / "llm.json").read_text()))


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run the tests that read reference values, and write the names of what they read to FILE"
    parser.addoption("--vectors-read", metavar="FILE", help=what)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--vectors-read"):
        items[:] = [item for item in items if "vectors" in getattr(item, "fixturenames", ())]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (file := session.config.getoption("--vectors-read")) is not None:
        Path(file).write_text(json.dumps(sorted(Vectors.read)))


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
