"""Prompts are encoded once and cached under a hash of their encoders."""

import pytest
import torch
from small_flow import make_prompts

from tandem.policies.flow.embeddings import PromptEmbeddingCache, fingerprint_of, pieces
from tandem.policies.flow.records import PromptInput

CPU = torch.device("cpu")


class Counting:
    """An encoder whose condition is the length of the text; it counts how often it is loaded."""

    def __init__(self, name="one"):
        self.name, self.loaded, self.encoded, self.freed = name, 0, [], 0

    def fingerprint(self):
        return self.name

    def refuse(self, text):
        return None

    def encode(self, texts, device):
        self.loaded += 1
        for text in (one.text for one in texts):
            self.encoded.append(text)
            yield {"states": torch.full((2, 3), float(len(text))), "pooled": torch.ones(2)}
        self.freed += 1


def inputs(*texts):
    return [PromptInput(text=text) for text in texts]


def library(adapter, cache, **options):
    return PromptEmbeddingCache(
        adapter, cache=cache, negative=options.pop("negative", None), **options
    )


def test_a_text_is_encoded_once_in_all_runs(tmp_path):
    first = Counting()
    library(first, tmp_path).prepare(inputs("red", "blue", "red"), CPU)
    assert first.encoded == ["red", "blue"] and first.loaded == first.freed == 1
    again = Counting()
    found = library(again, tmp_path).stack(inputs("blue", "red", "blue"), CPU)
    assert again.loaded == 0
    assert found["states"][:, 0, 0].tolist() == [4, 3, 4]


def test_other_encoders_have_other_files(tmp_path):
    library(Counting("one"), tmp_path).prepare(inputs("red"), CPU)
    other = Counting("two")
    library(other, tmp_path).prepare(inputs("red"), CPU)
    assert other.encoded == ["red"]


def test_memory_is_bounded_where_there_are_files_and_complete_where_there_are_none(tmp_path):
    texts = inputs(*(str(i) * (i + 1) for i in range(9)))
    for cache, kept in ((tmp_path, 2), (None, 9)):
        some = library(Counting(), cache, keep=2)
        some.prepare(texts, CPU)
        assert len(some.recent) == kept
        assert some.stack(texts, CPU)["states"][:, 0, 0].tolist() == list(range(1, 10))
        assert some.adapter.loaded == 1


def test_what_was_read_last_is_forgotten_last(tmp_path):
    some = library(Counting(), tmp_path, keep=2)
    some.prepare(inputs("a", "b"), CPU)
    some.stack(inputs("a"), CPU)
    some.prepare(inputs("c"), CPU)
    assert set(some.recent) == {*inputs("a", "c")}


def test_negatives_are_read_only_by_guided_rows_and_are_the_prompts_own_first():
    adapter = Counting()
    some = library(adapter, None, negative="ugly")
    assert some.rows(make_prompts(), CPU, guided=False).unprompted is None
    assert "ugly" not in adapter.encoded
    prompts = [*make_prompts(["a"]), *make_prompts(["b"], negative_prompt="")]
    unprompted = some.rows(prompts, CPU, guided=True).unprompted
    assert unprompted["states"][:, 0, 0].tolist() == [4, 0]
    assert library(adapter, None).rows(prompts, CPU, guided=True).unprompted is None


def test_a_text_to_get_away_from_is_another_input_than_the_same_text_as_a_prompt(tmp_path):
    some = library(Counting(), tmp_path, negative="a")
    some.rows(make_prompts(["a"]), CPU, guided=True)
    assert some.adapter.encoded == ["a", "a"]
    assert len({*tmp_path.rglob("*.safetensors")}) == 2


def test_no_two_inputs_have_one_file():
    near = [
        PromptInput(text="negative:ugly"), PromptInput(text="ugly", negative=True),
        PromptInput(text="a\n(8, 8)"), PromptInput(text="a", size=(8, 8)),
    ]  # fmt: skip
    assert len({one.name for one in near}) == len(near)


def test_no_half_file_is_left_and_none_is_read(tmp_path):
    some = library(Counting(), tmp_path)
    some.prepare(inputs("red"), CPU)
    (file,) = tmp_path.rglob("*.*")
    assert file.suffix == ".safetensors" and len(file.stem) == 64


@pytest.mark.parametrize("size", [100, 40_000])
def test_a_fingerprint_sees_contents_names_and_settings(tmp_path, size):
    folder = tmp_path / "a"
    (folder / "encoder").mkdir(parents=True)
    file = folder / "encoder" / "weights"
    file.write_bytes(bytes(size))
    first = fingerprint_of(folder, ["encoder", "absent"], 77)
    assert fingerprint_of(folder, ["encoder", "absent"], 77) == first
    assert fingerprint_of(folder, ["encoder"], 78) != first
    file.write_bytes(bytes(size - 1) + b"x")
    assert fingerprint_of(folder, ["encoder"], 77) != first
    assert b"x" in list(pieces(file, count=4, size=1000))[-1]
    file.rename(file.with_name("other"))
    assert fingerprint_of(folder, ["encoder"], 77) not in (first, "")
