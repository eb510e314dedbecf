"""Prompts of a plain text file, and the negative prompt of guidance."""

import json
from pathlib import Path

import pytest

from tandem.config import build, compose
from tandem.data.rows import jsonl, read_rows, text, with_negative

LINES = "a red circle\r\n\n  a blue square \n\t\na red circle\n{\"prompt\": 3}\n"  # fmt: skip


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_each_line_is_a_prompt_and_the_same_line_counts_once(tmp_path):
    data = text(path=write(tmp_path / "shapes.txt", LINES), held_out=0, seed=0)
    assert [p.text for p in data.train] == ["a red circle", "a blue square", '{"prompt": 3}']
    assert {(p.source, p.answer, p.media) for p in data.train} == {("shapes", None, None)}
    assert [p.fields for p in data.train] == [{}] * 3
    assert [(row.line, row.reason) for row in data.quarantine] == [(5, "equal to row 1")]
    assert data.demonstrations == data.pairs == ()


def test_lines_that_are_no_text_are_listed(tmp_path):
    content = b"\xef\xbb\xbffine\n\xff\xfe\n" + b"x" * (1 << 23) + b"\nalso fine"
    data = text(path=write(tmp_path / "a.txt", content), held_out=0, seed=0)
    assert [p.text for p in data.train] == ["fine", "also fine"]
    assert [row.reason for row in data.quarantine] == [
        "not valid unicode",
        "longer than 4194304 bytes",
    ]


def test_a_line_is_split_and_named_as_the_json_row_of_the_same_prompt(tmp_path):
    prompts = [f"prompt {i}" for i in range(200)]
    plain = write(tmp_path / "a.txt", "\n".join(prompts))
    rows = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"prompt": p}) for p in prompts))
    one = text(path=plain, held_out=0.1, max_size=50, seed=3)
    other = jsonl(path=rows, held_out=0.1, max_size=50, seed=3)
    assert (one.train, one.eval) == (other.train, other.eval)
    assert len(one.train) == 50 and one.eval


def test_one_negative_prompt_serves_all_lines_and_moves_no_prompt(tmp_path):
    path = write(tmp_path / "a.txt", "\n".join(f"prompt {i}" for i in range(50)))
    other = write(tmp_path / "b.txt", "one more")
    plain = text(path=path, eval_path=other, test_path=other, seed=0)
    for negative in ("", "blurry"):
        data = text(path=path, eval_path=other, test_path=other, negative_prompt=negative, seed=0)
        for split in (data.train, data.eval, data.test):
            assert {p.fields["negative_prompt"] for p in split} == {negative}
        assert [p.id for p in data.train] == [p.id for p in plain.train]


def test_a_row_that_says_its_negative_prompt_keeps_it(tmp_path):
    rows = '{"prompt": "a", "negative_prompt": "own"}\n{"prompt": "b"}'
    read = read_rows(Path(write(tmp_path / "a.jsonl", rows)), option="data.path")
    fields = [prompt.fields for prompt in with_negative("common", read).prompts]
    assert fields == [{"negative_prompt": "own"}, {"negative_prompt": "common"}]
    assert with_negative(None, read) is read


def test_the_option_reads_what_the_command_line_says(tmp_path):
    path = write(tmp_path / "a.txt", "\n".join(f"prompt {i}" for i in range(50)))
    overrides = ["data=text", f"data.path={path}", "data.negative_prompt=''"]
    data = build(compose(overrides).data, "data")
    assert len(data.train) + len(data.eval) == 50
    assert data.eval[0].fields == {"negative_prompt": ""}


def test_a_row_may_bring_its_negative_prompt_and_it_must_be_text(tmp_path):
    rows = [
        {"prompt": "a", "negative_prompt": "blurry"},
        {"prompt": "b", "negative_prompt": ""},
        {"prompt": "c", "negative_prompt": None},
        {"prompt": "d", "negative_prompt": ["blurry"]},
    ]
    content = "\n".join(json.dumps(row) for row in rows)
    data = jsonl(path=write(tmp_path / "a.jsonl", content), held_out=0, seed=0)
    assert [p.fields for p in data.train] == [
        {"negative_prompt": "blurry"},
        {"negative_prompt": ""},
        {},
    ]
    assert [row.reason for row in data.quarantine] == ["`negative_prompt` must be text, not list"]


def test_a_useless_file_names_the_flag(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.path=.*the file has no rows"):
        text(path=write(tmp_path / "a.txt", "\n \n"), seed=0)
