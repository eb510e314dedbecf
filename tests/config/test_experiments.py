"""An experiment counts as the overrides that it stands for: a warm start takes the shared ones."""

import sys

import pytest

from tandem.config import check, compose
from tandem.config.experiments import spell
from tandem.config.overrides import parse
from tandem.config.plugins import ADMITTED
from tandem.launch.initial_weights import shared_overrides, warm_configuration

LETTERS = """# @package _global_
defaults:
  - base
  - override /data: sort_letters
  - override /algorithm: rloo
  - override /schedule: cosine
iterations: 7
data: {held_out: 11, lengths: {shortest: 3}}
model: {lora: {r: 4, alpha: 8}}
rollout: {temperature: 0.9, stop: ["it's"]}
algorithm: {kl: {coef: 0.1}}
optimizer: {lr: 1.0e-6}
"""
FLOW = "# @package _global_\ndefaults: [base, override /model: tiny_flow]\n"
BASE = "# @package _global_\nseed: 5\n"


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    folder = tmp_path / "own_study" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (tmp_path / "own_study" / "__init__.py").touch()
    for name, text in (("letters", LETTERS), ("flow", FLOW), ("base", BASE)):
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_study", None)
    ADMITTED.discard("own_study")


def both(*words):
    """The configuration of a run and that of its warm start."""
    given = ["plugins=[own_study]", *words]
    cfg = compose(given)
    cfg.overrides = given
    check(cfg)
    start = warm_configuration(cfg)
    check(start)
    return cfg, start


def test_a_warm_start_has_the_data_model_and_seed_of_the_study_and_an_algorithm_of_its_own():
    run, start = both("experiment=letters")
    assert start.seed == 5 and start.choices.data == "sort_letters"
    assert (start.data, start.model, start.rollout) == (run.data, run.model, run.rollout)
    assert start.data.lengths == {"shortest": 3, "longest": 8, "count": 7800}
    assert start.model.lora == {"r": 4, "alpha": 8} and start.rollout.stop == ["it's"]
    alone = both("data=sort_letters")[1]
    assert start.choices.algorithm == "sft"
    for key in ("iterations", "algorithm", "optimizer", "schedule"):
        assert start[key] == alone[key] != run[key]


def test_it_starts_the_model_of_the_study():
    run, start = both("experiment=flow")
    assert (start.choices.model, start.seed) == ("tiny_flow", 5)
    assert (start.model, start.data) == (run.model, run.data)


def test_what_is_typed_wins_over_the_study_in_both():
    run, start = both("experiment=letters", "seed=6", "data.held_out=12")
    assert start.seed == 6 and start.data == run.data and start.data.held_out == 12
    run, start = both("experiment=letters", "data=sort_ladder")
    assert start.choices.data == "sort_ladder" and start.data == run.data


def test_without_an_experiment_the_words_stay():
    assert shared_overrides(["seed=1", "iterations=3", "data=sort_letters"]) == [
        "seed=1",
        "data=sort_letters",
    ]


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1e-6, "", "a, 'b' \\' ${x} [1]\n2", "true", "3", [], [1, ["x", {"a": None}]]],
)
def test_a_spelled_value_is_read_as_itself(value):
    (read,) = parse([f"key={spell(value)}"])
    assert read.value() == value and type(read.value()) is type(value)
