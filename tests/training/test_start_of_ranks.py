"""Ranks start from the same prompts and weights."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from records import rollout
from table_policy import TablePolicy
from torch import distributed
from two_ranks import on_both

from tandem.config import compose
from tandem.data import Data
from tandem.launch.assembly import checksums
from tandem.stop import Stop
from tandem.training.inputs import (
    checksum_of_code,
    checksum_of_prompts,
    checksum_of_weights,
    list_changed,
    refuse_unlike_ranks,
)
from tandem.types import Picture, Prompt


def compare_ranks():
    """What is said of equal inputs, and of weights that each rank drew for itself."""
    equal = {"data=one": 1, "model=one": 2}
    said = []
    for own in (equal, {**equal, "model=one": distributed.get_rank()}):
        try:
            refuse_unlike_ranks(own)
            said.append(None)
        except Stop as stop:
            said.append(str(stop))
    return said


def test_both_ranks_refuse_weights_that_differ_between_them():
    first, second = on_both(compare_ranks)
    assert first == second
    assert first[0] is None and first[1].startswith("model=one differs between ranks; let it")


def test_a_checksum_depends_on_order_and_on_every_tensor():
    prompts = rollout(torch.ones(3, 1).bool(), torch.arange(3)).prompts
    assert checksum_of_prompts(prompts) == checksum_of_prompts([*prompts])
    assert checksum_of_prompts(prompts) != checksum_of_prompts(prompts[::-1])
    weights = {"a": torch.zeros(2, 2), "b": torch.ones(3), "none": torch.zeros(0)}
    moved = {**weights, "b": torch.tensor([1.0, 1.0, 2.0])}
    assert checksum_of_weights(weights) == checksum_of_weights(dict(reversed(weights.items())))
    assert checksum_of_weights(weights) != checksum_of_weights(moved)


SHOWN = Picture(name="p", height=1, width=1, load=lambda: torch.zeros(1, 1, 3))
CHANGES = {
    "id": 1,
    "source": "numbers",
    "text": "b",
    "messages": ({"role": "user", "content": "a"},),
    "images": (SHOWN,),
    "answer": "b",
    "chosen": "c",
    "rejected": "d",
    "media": SHOWN,
    "chosen_media": SHOWN,
    "rejected_media": SHOWN,
    "size": (8, 8),
    "fields": {"tests": ["assert f(1) == 2"]},
    "rewards": ("length",),
    "episode": {"attempts": 1},
}


@pytest.mark.parametrize("name", [field.name for field in fields(Prompt)])
def test_a_checksum_depends_on_every_field_of_a_prompt(name):
    plain = Prompt(id=0, source="words", text="a")
    changes = {name: CHANGES[name]} | ({"text": None} if name == "messages" else {})
    assert checksum_of_prompts([plain]) != checksum_of_prompts([replace(plain, **changes)])


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"a", b"b"), ({1}, {2}), (np.int64(1), np.int64(2)), (np.zeros(2), np.ones(2))],
    ids=["bytes", "set", "number", "array"],
)
def test_a_checksum_depends_on_the_values_of_fields(one, other):
    made = [Prompt(id=0, source="words", text="a", fields={"x": x}) for x in (one, other)]
    assert checksum_of_prompts(made[:1]) != checksum_of_prompts(made[1:])


def test_a_checksum_of_code_covers_all_files_of_one_name(tmp_path):
    files = [tmp_path / folder / "rewards.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("x = 1\n")
    before = checksum_of_code(files)
    assert before == checksum_of_code(files[::-1])
    for file in files:
        file.write_text("x = 2\n")
        assert checksum_of_code(files) != before
        file.write_text("x = 1\n")


def test_a_checksum_depends_on_no_address():
    made = [Prompt(id=0, source="words", text="a", fields={"any": object()}) for _ in range(2)]
    assert checksum_of_prompts(made[:1]) == checksum_of_prompts(made[1:])


@pytest.mark.parametrize(
    ("name", "said"),
    [("table", "model=tiny_lm has changed"), ("values", "the frozen part of model=tiny_lm has")],
)
def test_trained_and_frozen_weights_are_compared(name, said):
    policy, cfg = TablePolicy(), compose([])
    assert not policy.values.requires_grad  # as is the base below adapters
    prompts = (Prompt(id=0, source="words", text="a"),)
    before = checksums(policy, prompts, Data(train=prompts, eval=()), cfg)
    with torch.no_grad():
        policy.get_parameter(name).mul_(2).add_(1)
    after = checksums(policy, prompts, Data(train=prompts, eval=()), cfg)
    (line,) = list_changed(after, before)
    assert line.startswith(said)


def test_a_checkpoint_without_checksums_changes_nothing():
    assert list_changed({"data=one": 1}, {}) == []
    assert len(list_changed({"data=one": 1}, {"data=one": 2})) == 1
