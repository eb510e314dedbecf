"""An experiment counts as the overrides that it stands for: a warm start takes the shared ones."""

import sys
from pathlib import Path

import pytest
import yaml

from tandem.config import check, compose, resume_config
from tandem.config.experiments import override_text, record_overrides, shared_overrides
from tandem.config.overrides import parse
from tandem.config.plain import to_plain
from tandem.config.plugins import ADMITTED
from tandem.launch.initial_weights import warm_configuration
from tandem.launch.warm_start_key import collect_inputs

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
    record_overrides(cfg, given)
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


def test_numbers_of_the_study_for_data_that_the_warm_start_replaces_stay_with_the_run(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    _, start = both(
        "experiment=letters",
        "data.held_out=12",
        "warm_start=['algorithm=sft','data=jsonl','data.path=a.jsonl']",
    )
    assert (start.choices.data, start.data.path) == ("jsonl", "a.jsonl")
    assert start.data.held_out == 12  # which was typed
    assert start.model.lora == {"r": 4, "alpha": 8}


def test_a_warm_start_asks_in_the_words_of_the_run():
    wording = ("data.wording.chat=false", "++data.wording.instruction='Be brief.'")
    run, start = both("data=hub", "data.name=x", *wording)
    assert start.data == run.data
    assert start.data.wording == {"chat": False, "instruction": "Be brief."}


def resume(run_dir, cfg, *left_out):
    plain = {key: x for key, x in to_plain(cfg).items() if key not in left_out}
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(yaml.safe_dump(plain))
    return resume_config(run_dir, ["plugins=[own_study]"])


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_text(FLOW)])
def test_a_resumed_run_has_the_warm_start_of_the_study_as_it_was(tmp_path, change):
    run, start = both("experiment=letters")
    assert start.choices.data == "sort_letters"
    change(tmp_path / "own_study" / "conf" / "experiment" / "letters.yaml")
    again = warm_configuration(resume(tmp_path / "run", run))
    assert collect_inputs(again).name == collect_inputs(start).name


def test_a_run_from_before_the_words_of_a_study_were_recorded_keeps_its_warm_start(tmp_path):
    run, _ = both("experiment=letters")
    start = warm_configuration(resume(tmp_path / "run", run, "inherited"))
    _, plain = both()
    assert (start.choices.data, start.seed) == (plain.choices.data, plain.seed)


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
    (read,) = parse([f"key={override_text(value)}"])
    assert read.value() == value and type(read.value()) is type(value)
