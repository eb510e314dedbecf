"""conf/data: each option has a description and composes into a call of its function."""

import json
from pathlib import Path

import pytest

from tandem.config import build, compose
from tandem.data import Curriculum, PromptStream

FOLDER = Path(__file__).parents[2] / "conf" / "data"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_an_option_says_what_it_is(path):
    assert path.read_text().startswith("# ")


def test_the_ladder_composes_with_its_curriculum():
    data = build(compose(["data=sort_ladder", "data.prompts.count=20", "seed=3"]).data, "data")
    assert {prompt.source for prompt in data.eval} == {f"length_{n:02}" for n in range(1, 11)}
    stream = data.curriculum(data.train, seed=3)
    assert isinstance(stream, Curriculum)
    assert (stream.floor, stream.decay) == (0.03, 0.8)


def test_the_curriculum_is_a_choice_of_its_own():
    overrides = ["data=sort_ladder", "data/curriculum=uniform", "data.demonstrations.count=20"]
    data = build(compose([*overrides, "data.prompts.count=20"]).data, "data")
    assert type(data.curriculum(data.train, seed=0)) is PromptStream


def test_the_smoke_test_has_forty_thousand_strings_of_which_a_thousand_are_held_out():
    data = build(compose(["data=sort_letters"]).data, "data")
    assert len(data.eval) + len(data.test) == 1000
    assert len(data.train) == len(data.demonstrations) == 39_000


def test_a_file_is_read_as_composed(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}?"}) for i in range(50)))
    data = build(compose(["data=jsonl", f"data.path={path}", "data.max_size=10"]).data, "data")
    assert len(data.train) == 10
    assert data.eval


def test_the_answer_of_gsm8k_stands_behind_its_hashes():
    node = compose(["data=hub"]).data
    assert node.columns.answer_pattern == r"####\s*(.+)"
    assert (node.name, node.split.subset, node.split.test) == ("openai/gsm8k", "main", "test")
