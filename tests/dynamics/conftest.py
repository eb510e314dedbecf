"""The reference values of flows, `flow("grpo/mean")`, and a note of which ones tests have read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[1] / "vectors" / "flow.json"
READ: set[str] = set()


@pytest.fixture(scope="session")
def flow() -> Callable[..., torch.Tensor]:
    """(case/field, dtype=float64) -> tensor."""
    cases = json.loads(FILE.read_text())

    def read(name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        READ.add(name)
        case, field = name.rsplit("/", 1)
        return torch.tensor(cases[case][field], dtype=dtype)

    return read


def pytest_sessionfinish() -> None:
    if file := os.environ.get("FLOW_VALUES_READ"):
        Path(file).write_text(json.dumps(sorted(READ)))
