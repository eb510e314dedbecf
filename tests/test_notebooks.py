"""The notebooks run cell after cell, on fewer iterations than they ask for."""

import json
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

import matplotlib
import matplotlib.pyplot as plt
import pytest
import yaml

import tandem
from tandem.config.plugins import ADMITTED

pytestmark = pytest.mark.usefixtures("unpainted", "unregistered")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.ipynb"))}
FEWER = (
    "warm_start=null", "iterations=2", "prompts_per_step=2", "group_size=4", "guards.no_signal=9",
    "evaluation.every=2", "evaluation.prompts=4", "evaluation.pass_at=[1]", "evaluation.samples=1",
)  # fmt: skip
# Without a start nothing is sorted: length tells answers apart.
OF_TOKENS = ("reward=target_length", "reward.target_length.function.target=5")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """(name) -> the names that a notebook leaves, its run directories, and the figures it shows."""
    matplotlib.use("agg")
    folders = (tmp_path / str(number) for number in count())
    train, made, shown = tandem.train, [], []

    def shorter(*given):
        own = FEWER if "model=tiny_flow" in given else (*FEWER, *OF_TOKENS)
        made.append(train(*given, *own, f"run_dir={next(folders)}").run_dir)
        return tandem.launch.run.Result(metrics={}, run_dir=made[-1])

    def show():
        shown.extend(map(plt.figure, plt.get_fignums()))
        plt.close("all")

    def go(name):
        notebook = ModuleType("__main__")  # where functions of notebooks live
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        for cell in NOTEBOOKS[name]["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), vars(notebook))
        return vars(notebook), made, shown

    monkeypatch.setattr(tandem, "train", shorter)
    monkeypatch.setattr(plt, "show", show)
    yield go
    ADMITTED.discard("__main__")


def curves(figures):
    return [line.get_xydata() for figure in figures for axes in figure.axes for line in axes.lines]


def config(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_a_loss_written_in_a_notebook_trains_beside_the_default(run):
    names, made, shown = run("your_own_algorithm")
    losses = [config(folder)["algorithm"]["loss"]["_target_"] for folder in made]
    assert losses == ["tandem.losses.policy.ppo", "__main__.fading"]
    assert ("algorithm.loss.width") in names["differences"](*names["runs"].values())
    assert len(shown) == 2 and all(len(line) > 1 for line in curves(shown))


def test_all_that_a_run_leaves_is_read(run):
    names, made, shown = run("read_a_run")
    assert {path.name for path in made[0].iterdir()} <= {*names["MEANING"]}
    assert [config(folder)["choices"]["algorithm"] for folder in made] == ["grpo", "rloo"]
    assert names["share"].shape == (4, 2)
    assert len(shown) == 3


def test_the_equalities_hold_and_one_step_trains_both(run):
    _, made, shown = run("one_axis")  # it asserts every equality to 1e-12 itself
    assert [config(folder)["choices"]["model"] for folder in made] == ["tiny_lm", "tiny_flow"]
    assert len(shown) == 5 and curves(shown)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_what_it_printed(name):
    cells = NOTEBOOKS[name]["cells"]
    assert cells[0]["source"][0].startswith("# ")
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert [cell["id"] for cell in cells if cell.get("outputs")] == []
