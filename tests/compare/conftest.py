"""A folder with two runs that can be read and one to be spoilt."""

import pytest
from spoilt_runs import remove
from written_runs import write_run


@pytest.fixture
def folder(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"good{seed}", [0.1, 0.2], seed=seed)
    write_run(tmp_path / "odd", [0.1, 0.9], seed=2)
    yield tmp_path
    remove(tmp_path / "odd")
