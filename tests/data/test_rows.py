"""Rows of a file: prompts, quarantined rows, and held-out ones."""

import json
import os

import pytest

from tandem.data import write_quarantine
from tandem.data.checks import LONGEST_ROW
from tandem.data.rows import jsonl, text


def write(path, rows):
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def number_rows(count):
    return [{"prompt": f"question {i}", "answer": str(i)} for i in range(count)]


def load(path, **options):
    return jsonl(path=path, seed=0, **options)


def test_text_and_chats_become_prompts_and_other_keys_become_fields(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    rows = [
        {"prompt": "2+2=", "answer": 4, "tests": ["a", "b"], "id": 17, "source": "sums"},
        {"messages": chat, "answer": "2"},
        {"prompt": "no answer"},
    ]
    data = load(write(tmp_path / "rows.jsonl", rows), held_out=0)
    first, second, third = data.train
    assert (first.text, first.answer, first.id, first.source) == ("2+2=", "4", 17, "sums")
    assert first.fields == {"tests": ["a", "b"]}
    assert second.messages == tuple(chat)
    assert second.source == "rows"
    assert data.demonstrations == (first, second)
    assert (third.answer, data.eval, data.quarantine) == (None, (), ())


def test_rows_with_two_answers_are_the_pairs(tmp_path):
    pair = {"prompt": "2+2=", "chosen": "4", "rejected": "5", "answer": "4"}
    alone = {"prompt": "3+3=", "answer": "6"}
    data = load(write(tmp_path / "rows.jsonl", [pair, alone]), held_out=0)
    assert [(p.text, p.answer, p.chosen, p.rejected) for p in data.pairs] == [
        ("2+2=", "4", "4", "5")
    ]
    assert data.pairs[0].fields == {}
    assert len(data.train) == len(data.demonstrations) == 2
    kept = load(write(tmp_path / "few.jsonl", [alone]), held_out=0)
    assert kept.pairs == ()
    assert kept.train[0].chosen is None


GOOD = {"prompt": "fine", "answer": "yes"}
BAD = [
    (b"not json", "not JSON"),
    (b'{"prompt": "cut off', "not JSON"),
    (b'{"prompt": "a"} {"prompt": "b"}', "not JSON: Extra data"),
    (b"[]", "not a list"),
    (b'"text"', "not text"),
    (b"7", "not a number"),
    (b"null", "not null"),
    (b"{}", "no prompt"),
    (b'{"prompt": null}', "no prompt"),
    (b'{"answer": "4"}', "no prompt: name a field `prompt` or `messages`; there is answer"),
    (b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}', "both"),
    (b'{"prompt": ""}', "`prompt` is empty"),
    (b'{"prompt": "  \\n"}', "`prompt` is empty"),
    (b'{"prompt": 3}', "`prompt` must be text, not a number"),
    (b'{"prompt": ["a"]}', "`prompt` must be text, not a list"),
    (b'{"prompt": "a", "answer": ["4"]}', "`answer` must be text or a number"),
    (b'{"prompt": "a", "answer": true}', "`answer` must be text or a number, not a boolean"),
    (b'{"prompt": "a", "id": 1.5}', "`id` must be"),
    (b'{"prompt": "a", "id": 9223372036854775808}', "`id` must be"),
    (b'{"prompt": "a", "source": 1}', "`source` must be text"),
    (b'{"messages": []}', "at least one message"),
    (b'{"messages": "hello"}', "must be a list"),
    (b'{"messages": ["hello"]}', "message 1 must be an object"),
    (b'{"messages": [{"role": "user"}]}', "`role` and `content`"),
    (b'{"messages": [{"content": "a"}]}', "`role` and `content`"),
    (b'{"messages": [{"role": "robot", "content": "a"}]}', "role 'robot' is not one of"),
    (b'{"messages": [{"role": "user", "content": [1]}]}', "`content` must be text"),
    (b'{"messages": [{"role": "user", "content": null}]}', "`content` must be text, not null"),
    (b'{"messages": [{"role": "user", "content": "a", "name": 1}]}', "`name` must be text"),
    (
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        "give it as `answer`",
    ),
    (b'{"prompt": "a", "chosen": "b"}', "`rejected` is missing"),
    (b'{"prompt": "a", "rejected": "b"}', "`chosen` is missing"),
    (b'{"prompt": "a", "chosen": "b", "rejected": "b"}', "are equal: nothing is preferred"),
    (b'{"prompt": "a", "chosen": " ", "rejected": "b"}', "`chosen` is empty"),
    (b'{"prompt": "a", "chosen": "b", "rejected": ["c"]}', "`rejected` must be text, not a list"),
    (b'{"prompt": "caf\xe9"}', "not valid unicode"),
    (b'{"prompt": "\\ud800"}', "not valid unicode"),
    (b'\xff\xfe{\x00"\x00', "not valid unicode"),
    (b'{"prompt": "a", "score": NaN}', "NaN is not a valid JSON number"),
    (b'{"prompt": "a", "score": 1e999}', "1e999 is not a valid JSON number"),
    (b'{"prompt": "a", "prompt": "b"}', "a key is given twice"),
    (b'{"prompt": ' + b"[" * 100_000, "nested too deeply"),
    (b'{"prompt": "' + b"x" * LONGEST_ROW + b'"}', "longer than"),
    (json.dumps(GOOD).encode(), "equal to row 1"),
]


def test_every_malformed_row_is_listed_with_its_line_and_reason_and_none_is_fatal(tmp_path):
    assert len(BAD) >= 30
    last = {"prompt": "still read"}
    data = load(write(tmp_path / "mixed.jsonl", [GOOD, *(row for row, _ in BAD), last]), held_out=0)
    assert [prompt.text for prompt in data.train] == ["fine", "still read"]
    assert [row.line for row in data.quarantine] == list(range(2, len(BAD) + 2))
    for row, (_, reason) in zip(data.quarantine, BAD, strict=True):
        assert reason in row.reason, (row.line, row.reason)


def test_a_null_of_an_optional_key_is_its_absence(tmp_path):
    absent = ("id", "source", "answer", "chosen", "rejected", "picture", "images", "messages")
    rows = [{"prompt": f"{i}", key: None} for i, key in enumerate((*absent, "negative_prompt"))]
    data = load(write(tmp_path / "rows.jsonl", [*rows, {"prompt": "x", "level": None}]), held_out=0)
    assert data.quarantine == () and {prompt.source for prompt in data.train} == {"rows"}
    assert [prompt.fields for prompt in data.train] == [{}] * 9 + [{"level": None}]


def test_the_quarantine_file_says_what_was_left_out(tmp_path):
    data = load(write(tmp_path / "mixed.jsonl", [GOOD, *(row for row, _ in BAD)]), held_out=0)
    path = write_quarantine(tmp_path, data.quarantine)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == len(BAD)
    assert rows[0] == {
        "file": str(tmp_path / "mixed.jsonl"),
        "line": 2,
        "reason": "not JSON: Expecting value at column 1",
        "text": "not json",
    }
    assert max(len(row["text"]) for row in rows) <= 200


def test_without_bad_rows_there_is_no_quarantine_file(tmp_path):
    (tmp_path / "quarantine.jsonl").write_text("{}\n")  # of an earlier start with other data
    assert write_quarantine(tmp_path, ()) is None
    assert list(tmp_path.iterdir()) == []


def test_the_same_id_twice_is_one_prompt(tmp_path):
    rows = [
        {"id": "x", "prompt": "one"},
        {"id": "x", "prompt": "two"},
        {"id": "y", "prompt": "two"},
    ]
    data = load(write(tmp_path / "rows.jsonl", rows), held_out=0)
    assert [prompt.text for prompt in data.train] == ["one", "two"]
    assert data.quarantine[0].reason == "the same id as row 1"


def test_byte_order_marks_of_joined_files_and_blank_lines_are_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    other = b'\xef\xbb\xbf{"prompt": "c"}\n'
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}\n' + other)
    data = load(str(path), held_out=0)
    assert [prompt.text for prompt in data.train] == ["a", "b", "c"]
    assert data.quarantine == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "the file has no rows"),
        (b"{}\n7\n", "among 2; row 1: no prompt"),
    ],
)
def test_a_file_without_a_prompt_is_one_line_that_names_the_flag(tmp_path, content, said):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^data\.path=.*{said}") as caught:
        load(str(path))
    assert "\n" not in str(caught.value)
    good = write(tmp_path / "good.jsonl", [GOOD])
    with pytest.raises(ValueError, match=rf"^data\.eval_path=.*{said}"):
        load(good, eval_path=str(path))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.path=.*directory"):
        load(str(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.txt"])
def test_a_pipe_or_a_device_is_no_file_of_rows_and_nobody_waits_for_it(tmp_path, make, name):
    make(tmp_path / name)
    read = jsonl if name.endswith("jsonl") else text
    with pytest.raises(ValueError, match=rf"^data\.path=.*{name}: it is not a regular file$"):
        read(path=str(tmp_path / name), seed=0)


def test_a_twentieth_is_held_out_and_no_row_is_in_both(tmp_path):
    data = load(write(tmp_path / "rows.jsonl", number_rows(1000)))
    assert len(data.eval) + len(data.train) == 1000
    assert 50 - 30 < len(data.eval) < 50 + 30
    assert not {p.text for p in data.eval} & {p.text for p in data.train}


def test_added_rows_move_no_row_between_the_splits(tmp_path):
    few = load(write(tmp_path / "few.jsonl", number_rows(200)))
    many = load(write(tmp_path / "many.jsonl", number_rows(400)[::-1]))
    assert {p.text for p in few.eval} <= {p.text for p in many.eval}
    assert {p.text for p in few.train} <= {p.text for p in many.train}


def test_the_split_of_different_questions_is_that_of_earlier_runs(tmp_path):
    held_out = load(write(tmp_path / "rows.jsonl", number_rows(100))).eval
    assert [p.text for p in held_out] == [f"question {i}" for i in (35, 64, 73, 95)]


@pytest.mark.parametrize("count", [2, 5, 100])
def test_rows_that_ask_the_same_are_held_out_together_in_any_order(tmp_path, count):
    def ask(rows):
        data = load(write(tmp_path / "rows.jsonl", rows))
        assert len(data.train) + len(data.eval) == len(rows)
        return [{prompt.text for prompt in split} for split in (data.train, data.eval)]

    rows = [{**row, "answer": f"{row['answer']}.{k}"} for row in number_rows(count)
            for k in range(20)]  # fmt: skip
    trained, held_out = ask(rows)
    assert 1 <= len(held_out) <= max(1, count // 10) and len(trained) == count - len(held_out)
    assert ask(rows[::-1]) == [trained, held_out]
    chat = [{"messages": [{"role": "user", "content": "once"}], "answer": str(k)} for k in range(3)]
    assert not trained & ask([*rows, *chat])[1]


def test_of_few_rows_one_is_held_out_and_one_is_left(tmp_path):
    for rows, held_out, want in [
        (number_rows(2), 0.001, (1, 1)),
        (number_rows(2), 0.999, (1, 1)),
        (number_rows(5), 0.999, (1, 4)),  # rather than the other way round
        (number_rows(1), 0.05, (1, 0)),
        (number_rows(1), 0.999, (1, 0)),
    ]:
        data = load(write(tmp_path / "rows.jsonl", rows), held_out=held_out)
        assert (len(data.train), len(data.eval)) == want


def test_named_files_are_the_other_splits(tmp_path):
    train = write(tmp_path / "train.jsonl", number_rows(100))
    other = write(tmp_path / "eval.jsonl", [*number_rows(3), b"bad"])
    third = write(tmp_path / "test.jsonl", number_rows(2))
    data = load(train, eval_path=other, test_path=third)
    assert [len(split) for split in (data.train, data.eval, data.test)] == [100, 3, 2]
    assert [row.file for row in data.quarantine] == [other]


def test_a_limit_chooses_the_same_prompts_of_any_order_of_rows(tmp_path):
    path = write(tmp_path / "rows.jsonl", number_rows(300))
    backwards = write(tmp_path / "back.jsonl", number_rows(300)[::-1])
    chosen = [{p.text for p in load(file, max_size=20).train} for file in (path, backwards)]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 20
    assert len(load(path, max_size=20).demonstrations) == 20
    assert {p.text for p in load(path, max_size=5).train} < chosen[0]


@pytest.mark.parametrize("option", [{"held_out": 1.0}, {"max_size": 0}])
def test_numbers_that_leave_nothing_are_refused(tmp_path, option):
    path = write(tmp_path / "rows.jsonl", number_rows(3))
    with pytest.raises(ValueError, match=r"data\.(held_out|max_size)="):
        load(path, **option)


def test_ids_are_the_same_in_every_run_and_follow_the_content(tmp_path):
    ids = [
        {p.text: p.id for p in load(write(tmp_path / name, rows), held_out=0).train}
        for name, rows in (("a.jsonl", number_rows(5)), ("b.jsonl", number_rows(5)[::-1]))
    ]
    assert ids[0] == ids[1]
    assert ids[0]["question 0"] == 6384524506152328293  # what earlier runs recorded
