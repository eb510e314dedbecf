"""Every preset on every model under every dynamics: refused in one line, or trained and resumed.

docs/matrix.md is the table.
"""

import json
import math
import re
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from matrix import (
    MODELS,
    OF_EPISODES,
    OF_PAIRS,
    OF_PICTURES,
    ON_FRESH_SAMPLES,
    PRESETS,
    answer,
    answers,
    choose,
    read_sections,
    refusal,
    section,
    ticks,
    write_world,
)
from safetensors.torch import load_file

import tandem

CELLS = sorted(ticks(), key=itemgetter(1, 0, 2))
# One cell per algorithm, which together cover all models and dynamics.
ONCE = [
    cells[turn % len(cells)]
    for turn, cells in enumerate(list(own) for _, own in groupby(CELLS, key=itemgetter(1)))
]
# One per kind of rows (sampled, demonstrated, in pairs), and per model and dynamics without one.
KINDS = [cell for cell in ONCE if cell[1] in ("sft", "dpo", "kto", "ppo")]
EACH = {*KINDS, *{cell[::2]: cell for cell in [*reversed(ONCE), *KINDS]}.values()}
# Under these dynamics the gate trains another model of pictures.
SEEN = {("sd3_5_medium", "flow_sde"), ("sd3_5_medium", "cps"), ("tiny_chain", "dance_sde")}
GATE = {cell for cell in EACH if cell[::2] not in SEEN}
DYNAMICS = {name for names in MODELS.values() for name in names}
FOREIGN = [(model, name) for model, own in MODELS.items() for name in sorted(DYNAMICS - {*own})]
FLAG = re.compile(r"\b[a-z_]+([./][a-z_]+)*=|\b[a-z_]+/[a-z_]+\b")  # key=value, or a group
QUICK = (
    "warm_start=null", "iterations=2", "prompts_per_step=2", "evaluation.every=null",
    "checkpoints.every=1", "plugins=[coin]", "reward=coin", "optimizer.lr=1e-3",
)  # fmt: skip
STEPS = "rollout.steps=6"
SIZES = {
    "tiny_lm": ["rollout.max_new_tokens=6", "data.lengths.count=200", "data.held_out=1"],
    "tiny_masked": ["data.lengths.count=200", "data.held_out=2", "rollout.steps=3"],
    "tiny_flow": [STEPS, "data.demonstrations.count=50"],
    "sd3_5_medium": [STEPS, "model.dtype=float32"],
    "tiny_chain": ["rollout.picture.steps=6", "data.demonstrations.count=80"],
}


PLAYED = ("rollout.max_new_tokens=3", "data.demonstrations=8")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.mark.slow  # hundreds of compositions; the gate looks up every sixth row of one model
@pytest.mark.parametrize("model", MODELS)
def test_the_page_says_what_composes_and_why_not(model, world):
    assert read_sections()[model] == section(model, world).rstrip() + "\n", "run `make matrix`"


def test_the_page_says_the_same_of_a_model_of_a_folder(world):
    own = [(cell, said) for cell, said in answers() if cell[0] == "sd3_5_medium"]
    rows = [own[start : start + len(OF_PICTURES)] for start in range(0, len(own), len(OF_PICTURES))]
    assert [row[0][0][1] for row in rows] == PRESETS
    for turn, row in list(enumerate(rows))[::6]:
        cell, said = row[turn % len(row)]
        assert answer(*cell, world) == said, f"{cell}: run `make matrix`"


@pytest.mark.slow
def test_the_page_says_of_two_parts_of_one_transformer_what_it_says_of_two(world):
    own = [(cell, said) for cell, said in answers() if cell[0] == "tiny_chain"]
    rows = [own[start : start + len(OF_PICTURES)] for start in range(0, len(own), len(OF_PICTURES))]
    for turn, row in enumerate(rows):
        (_, preset, dynamics), said = row[turn % len(row)]
        told = answer("tiny_unified", preset, dynamics, world)
        assert told.replace("tiny_unified", "tiny_chain") == said, f"{preset}, {dynamics}"


def test_every_reason_is_one_line_that_names_a_flag():
    reasons = [
        line for text in read_sections().values() for line in re.findall(r"^\d+\. .*", text, re.M)
    ]
    assert [reason for reason in reasons if not FLAG.search(reason)] == []


@pytest.mark.parametrize(("model", "dynamics"), FOREIGN)
def test_dynamics_of_another_kind_of_model_are_refused(model, dynamics, world):
    said = refusal(model, "grpo", dynamics, world)
    assert said is not None and FLAG.search(said) and "\n" not in said


def test_every_algorithm_trains_some_model():
    assert [preset for _, preset, _ in ONCE] == PRESETS
    assert {(model, dynamics) for model, _, dynamics in CELLS} == {
        (model, dynamics) for model, names in MODELS.items() for dynamics in names
    }


@pytest.mark.parametrize(("model", "preset", "dynamics"), sorted(GATE))
def test_a_cell_of_every_kind_trains_and_goes_on(model, preset, dynamics, world, tmp_path):
    train_and_go_on(model, preset, dynamics, world, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "preset", "dynamics"), sorted({*CELLS} - GATE))
def test_every_cell_trains_and_goes_on(model, preset, dynamics, world, tmp_path):
    train_and_go_on(model, preset, dynamics, world, tmp_path / "run")


# The most state: weights of other networks, an average of its own, those of an earlier epoch.
REMEMBERING = [
    ("tiny_flow", "tdm_r1", "ode", []),
    ("tiny_flow", "dmd2", "ode", []),
    ("tiny_masked", "espo", "masked", ["epochs=2"]),
    ("tiny_lm", "sdpo", "autoregressive", []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "preset", "dynamics", "more"), REMEMBERING)
def test_a_run_that_was_resumed_is_the_run_that_was_not_bit_for_bit(
    model, preset, dynamics, more, world, tmp_path
):
    command = [*command_of(model, preset, dynamics, world), *more, "schedule=constant"]
    whole = [word for word in command if not word.startswith("iterations=")]
    tandem.train(*whole, "iterations=3", f"run_dir={tmp_path / 'whole'}")
    tandem.train(*command, f"run_dir={tmp_path / 'cut'}")
    tandem.train(f"resume={tmp_path / 'cut'}", "iterations=3")
    files = [newest(tmp_path / name).glob("*.safetensors") for name in ("whole", "cut")]
    for one, two in zip(*map(sorted, files), strict=True):
        assert one.name == two.name
        left, right = load_file(one), load_file(two)
        assert left.keys() == right.keys()
        assert [key for key, x in left.items() if not torch.equal(x, right[key])] == []


def train_and_go_on(model: str, preset: str, dynamics: str, world: Path, folder: Path) -> None:
    """Two iterations, then one more after resuming."""
    sizes = PLAYED if preset in OF_EPISODES else SIZES[model]
    command = [*choose(model, preset, dynamics, world), *QUICK, *sizes, *numbers_of(preset)]
    if model in ("tiny_lm", "tiny_masked") and preset not in OF_EPISODES:
        command += ["data.pairs=20"] if preset in OF_PAIRS else ["data=sort_letters"]
    tandem.train(*command, f"cache_dir={world / 'cache'}", f"run_dir={folder}")
    first, second = history(folder)
    assert first["optim/grad_norm"] + second["optim/grad_norm"] > 0
    before = read_checkpoint(folder)
    tandem.train(f"resume={folder}", "iterations=3")
    assert history(folder)[:2] == [first, second]
    assert all(map(math.isfinite, losses(history(folder))))
    after = read_checkpoint(folder)
    assert sorted(before) == sorted(after)
    assert any(not torch.equal(weight, after[name]) for name, weight in before.items())


def command_of(model: str, preset: str, dynamics: str, world: Path) -> list[str]:
    command = [*choose(model, preset, dynamics, world), *QUICK, *SIZES[model], *numbers_of(preset)]
    if model in ("tiny_lm", "tiny_masked"):
        command += ["data.pairs=20"] if preset in OF_PAIRS else ["data=sort_letters"]
    return [*command, f"cache_dir={world / 'cache'}"]


def numbers_of(preset: str) -> list[str]:
    size = 1 if preset == "sft" else 2 if preset in OF_PAIRS else 4
    own = [f"group_size={size}", f"num_minibatches={1 if preset in ON_FRESH_SAMPLES else 2}"]
    if preset in ("sdft", "sdpo"):  # in characters of the embedded tokenizer
        own.append('algorithm.sampling_strategy.reprompt.template="{solution} {prompt}"')
    if preset in ("dmd2", "tdm"):  # these train the policy in one of five iterations
        own.append("algorithm.policy_every=2")
    return [*own, *(["algorithm.advantage.k=2"] if preset == "passk" else [])]


def history(folder: Path) -> list[dict]:
    """A line for each iteration."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "optim/grad_norm" in row]


def losses(rows: list[dict]) -> list[float]:
    names = ("loss/", "optim/", "reward/")
    return [value for row in rows for name, value in row.items() if name.startswith(names)]


def read_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in the newest checkpoint."""
    return load_file(newest(folder) / "policy.safetensors")


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step_*"))
