"""The notebooks run cell by cell with fewer iterations, and are stored with the outputs of a full
run."""

import ast
import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import pytest
import yaml

import tandem
from notebooks.execute import code_cells, hash_cells
from tandem.config.plugins import ADMITTED

pytestmark = pytest.mark.usefixtures("unregistered")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.ipynb"))}
FEWER = (
    "warm_start=null", "iterations=2", "prompts_per_step=2", "group_size=4", "guards.no_signal=9",
    "evaluation.every=2", "evaluation.prompts=4", "evaluation.pass_at=[1]", "evaluation.samples=1",
)  # fmt: skip
# Without a warm start nothing is sorted, so the reward is the length.
OF_TOKENS = ("reward=target_length", "reward.target_length.function.target=5")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """(name) -> the variables of a notebook, its run directories, and the figures it shows."""
    matplotlib.use("agg")
    folders = (tmp_path / str(number) for number in count())
    train, made, shown = tandem.train, [], []

    def shorter(*given):
        own = FEWER if "model=tiny_flow" in given else (*FEWER, *OF_TOKENS)
        made.append(train(*given, *own, f"run_dir={next(folders)}").run_dir)
        return tandem.launch.run.Result(metrics={}, run_dir=made[-1])

    def shorter_sweep(command, **how):
        if "tandem" not in command:
            return call(command, **how)
        few = [word for word in (*FEWER, *OF_TOKENS) if not word.startswith("warm_start")]
        given = ["seed=0", "warm_start=null", *few, f"sweep_dir={tmp_path}/runs/small"]
        keys = {word.partition("=")[0] for word in given}
        kept = [word for word in command if word.partition("=")[0] not in keys]
        return call(kept + given, **how | {"cwd": FOLDER.parent})

    call = subprocess.run

    def show():
        shown.extend(map(plt.figure, plt.get_fignums()))
        plt.close("all")

    def go(name):
        notebook = ModuleType("__main__")  # the module of functions in notebooks
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        for cell in NOTEBOOKS[name]["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), vars(notebook))
        return vars(notebook), made, shown

    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(FOLDER.parent / "experiments")
    monkeypatch.setattr(tandem, "train", shorter)
    monkeypatch.setattr(subprocess, "run", shorter_sweep)
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


@pytest.mark.slow
def test_all_that_a_run_leaves_is_read(run):
    names, made, shown = run("read_a_run")
    assert {path.name for path in made[0].iterdir()} <= {*names["MEANING"]}
    assert [config(folder)["choices"]["algorithm"] for folder in made] == ["grpo", "rloo"]
    assert names["share"].shape == (4, 2)
    assert len(shown) == 3


def test_the_hardest_prompts_of_a_length_stand_above_the_others(tmp_path, monkeypatch):
    matplotlib.use("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    line = {
        "iteration": 0,
        "eval/accuracy": [0.25, 1.0, 0.0, 0.5, 0.75],
        "sources": ["3_letters", "2_letters", "2_letters", "3_letters", "2_letters"],
    }
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    (cell,) = (x for x in code_cells(NOTEBOOKS["read_a_run"]) if "imshow" in "".join(x["source"]))
    names = {"plt": plt, "result": SimpleNamespace(run_dir=tmp_path)}
    exec("".join(cell["source"]), names)
    assert names["image"].get_array()[:, 0].tolist() == [0.25, 0.5, 0.0, 0.75, 1.0]
    assert [label.get_text() for label in names["axes"].get_yticklabels()] == [
        "2 letters", "3 letters",
    ]  # fmt: skip
    assert names["axes"].get_yticks().tolist() == [2, 0]
    plt.close("all")


@pytest.mark.slow
def test_the_equalities_hold_and_one_step_trains_both(run):
    _, made, shown = run("one_axis")  # it asserts every equality to 1e-12 itself
    assert [config(folder)["choices"]["model"] for folder in made] == ["tiny_lm", "tiny_flow"]
    assert len(shown) == 5 and curves(shown)


@pytest.mark.slow
def test_a_sweep_is_compared_and_a_committed_experiment_after_it(run):
    names, _, shown = run("from_sweep_to_claim")
    assert names["done"].returncode == 0, names["done"].stdout
    assert [len(one.scores) for one in names["small"].variants] == [1, 1]
    assert len(names["large"].pairs) == 6
    assert len(shown) == 3


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_imports_is_there(name):
    trees = [ast.parse("".join(cell["source"])) for cell in code_cells(NOTEBOOKS[name])]
    found = [x for tree in trees for x in tree.body if isinstance(x, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(found, type_ignores=[]), name, "exec"), {})


PRIVATE = re.compile(r"/(work|root|home|tmp|Users)/")  # a folder of a user's machine


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_with_what_its_own_cells_showed(name):
    """notebooks/execute.py NAME writes it again."""
    notebook = NOTEBOOKS[name]
    cells = code_cells(notebook)
    assert notebook["cells"][0]["source"][0].startswith("# ")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["metadata"]["executed"] == hash_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    kinds = {output["output_type"] for output in outputs}
    assert "display_data" in kinds and kinds <= {"display_data", "execute_result", "stream"}
    assert (
        PRIVATE.search(json.dumps([o for o in outputs if "image/png" not in o.get("data", {})]))
        is None
    )
    assert len(json.dumps(notebook)) < 400_000
