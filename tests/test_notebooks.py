"""The notebooks run, on fewer iterations than they ask for."""

import json
from pathlib import Path

import matplotlib
import pytest

import tandem

pytestmark = pytest.mark.usefixtures("unpainted")

FOLDER = Path(__file__).parents[1] / "notebooks"
FEWER = ("warm_start=null", "iterations=1", "prompts_per_step=4", "evaluation.pass_at=[1]")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_cells_run_one_after_the_other(path, tmp_path, monkeypatch):
    matplotlib.use("agg")
    train = tandem.train
    monkeypatch.setattr(
        tandem, "train", lambda *given: train(*given, *FEWER, f"run_dir={tmp_path / 'run'}")
    )
    names: dict = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["result"].run_dir == tmp_path / "run"
    assert len(names["evaluated"]) == 2
