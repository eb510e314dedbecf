"""Tables as people write them: CSV, dotted names, chats, and pictures of pandas and polars."""

import datetime
import decimal
import io
import itertools
import shutil
from functools import partial

import pytest
from PIL import Image

from tandem.data.hub import Columns, Split, hub
from tandem.data.table import _encode

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ALL = Split(held_out=0.0)
PAIR = Columns(prompt="q", answer="a")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def file_of(path, name, content):
    """A function that reads a folder with one file."""
    path.mkdir()
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return partial(hub, name=str(path), split=ALL, seed=0)


def parquet_of(path, columns):
    path.mkdir()
    pq.write_table(pa.table(columns), path / "train.parquet")
    return partial(hub, name=str(path), split=ALL, seed=0)


def png(colour):
    file = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(file, format="PNG")
    return file.getvalue()


ODD = ["007", "1.50", "NA", "None", "null", "nan", " x", "12345678901234567890"]


@pytest.mark.parametrize("name", ["train.csv", "train.tsv"])
def test_named_columns_of_a_csv_are_read_as_they_are_written(tmp_path, name):
    """An empty cell is null. Other columns of numbers stay so, with gaps as R and pandas write."""
    rows = [f"{i}?,{answer},{i}" for i, answer in enumerate(ODD)] + ["8?,,", "9?,1,NA", "NA,2,9"]
    text = "\n".join(["q,a,level", *rows])
    load = file_of(tmp_path / "csv", name, text.replace(",", "\t" if "tsv" in name else ","))
    data = load(columns=PAIR)
    assert [prompt.answer for prompt in data.train] == [*ODD, None, "1", "2"]
    assert [prompt.fields["level"] for prompt in data.train] == [*range(8), None, None, 9]
    assert data.train[-1].messages[0]["content"] == "NA" and data.quarantine == ()


@pytest.mark.parametrize(("kind", "read"), [("string", ["007", "NA"]), ("float64", ["7", None])])
def test_a_column_of_a_csv_is_what_its_card_declares(tmp_path, kind, read):
    load = file_of(tmp_path / "csv", "train.csv", "q,a\n1?,007\n2?,NA\n")
    declared = f"features: [{{name: q, dtype: string}}, {{name: a, dtype: {kind}}}]"
    (tmp_path / "csv" / "README.md").write_text(f"---\ndataset_info:\n  {declared}\n---\n")
    assert [prompt.answer for prompt in load(columns=PAIR).train] == read


def test_columns_of_a_csv_that_are_named_twice_or_not_there_are_said(tmp_path):
    load = file_of(tmp_path / "csv", "train.csv", "q,a\n1?,\n2?,\n")
    assert [p.answer for p in load(columns=Columns(prompt="q", answer="q")).train] == ["1?", "2?"]
    assert [p.answer for p in load(columns=PAIR).train] == [None, None]
    with pytest.raises(ValueError, match=r"^data\.columns\.answer=b: .* only \['a', 'q'\]$"):
        load(columns=Columns(prompt="q", answer="b"))


def test_a_csv_of_the_hub_is_found_offline_as_it_was_read(tmp_path, monkeypatch):
    """`datasets` names what it keeps by the options that a CSV was read with."""
    from datasets.packaged_modules.csv.csv import Csv

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "train.csv").write_text("q,a\n1?,007\n2?,NA\n")
    options = {"converters": dict.fromkeys(["q", "a"], _encode)}
    files = {"train": [str(tmp_path / "train.csv")]}
    online = Csv(dataset_name="name", hash="0", data_files=files, **options)
    online.download_and_prepare()
    kept = datasets.BuilderConfig("default").create_config_id(config_kwargs=options)
    folder = tmp_path / "cache" / "owner___name" / kept / "0.0.0" / "0"
    shutil.copytree(online.cache_dir, folder)
    data = hub(name="owner/name", split=ALL, columns=PAIR, seed=0)
    assert [prompt.answer for prompt in data.train] == ["007", "NA"]


def test_a_whole_number_beyond_a_float_gets_no_digits_that_nobody_wrote(tmp_path):
    load = parquet_of(tmp_path / "far", {"q": ["a", "b"], "a": [6.02e23, 4.0]})
    assert [prompt.answer for prompt in load(columns=PAIR).train] == ["6.02e+23", "4"]


SAID = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def test_a_chat_that_ends_with_its_answer_is_a_demonstration(tmp_path):
    longer = [*SAID, {"role": "user", "content": "And 3+3?"}, {"role": "assistant", "content": "6"}]
    load = parquet_of(tmp_path / "chats", {"messages": [SAID, longer], "right": ["four", "six"]})
    first, second = load(columns=Columns(prompt="messages")).demonstrations
    assert (list(first.messages), first.answer) == (SAID[:1], "4")
    assert (list(second.messages), second.answer) == (longer[:3], "6")
    named = load(columns=Columns(prompt="messages", answer="right")).train
    assert [(len(p.messages), p.answer) for p in named] == [(1, "four"), (3, "six")]


@pytest.mark.parametrize("unique", [False, True])
def test_a_chat_with_dates_is_refused_in_a_line(tmp_path, unique):
    dated = [{**turn, "at": datetime.datetime(2020, 1, 2)} for turn in SAID]
    load = parquet_of(tmp_path / "chats", {"messages": [dated]})
    with pytest.raises(ValueError, match="row 1: message 1: `at` must be text, not datetime"):
        load(columns=Columns(prompt="messages"), unique=unique)


def test_a_preference_whose_question_is_in_its_answers_is_a_pair(tmp_path):
    worse = [SAID[0], {"role": "assistant", "content": "5"}]
    load = parquet_of(tmp_path / "pairs", {"chosen": [SAID], "rejected": [worse]})
    (pair,) = load(columns=Columns(prompt="chosen", chosen="chosen", rejected="rejected")).pairs
    assert (list(pair.messages), pair.chosen, pair.rejected) == (SAID[:1], "4", "5")
    assert pair.answer is None


def test_a_question_is_repeated_whatever_was_answered(tmp_path):
    again = [SAID[0], {"role": "assistant", "content": "four"}]
    load = parquet_of(tmp_path / "chats", {"messages": [SAID, again]})
    (kept,) = load(columns=Columns(prompt="messages"), unique=True).train
    assert kept.answer == "4"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.csv", b"q,a\nx\xe9,1\n", "'utf-8' codec can't decode byte 0xe9"),
        ("train.csv", b"q,a\n1,2\n1,2,3,4\n", "Expected 2 fields in line 3, saw 4"),
        ("train.jsonl", b'{"q":"a","a":"b"}\n{"q":"a",\n', "JSON parse error: .* in row 1"),
    ],
)
def test_a_damaged_table_is_refused_with_what_is_wrong_in_it(tmp_path, name, content, said):
    load = file_of(tmp_path / "broken", name, content)
    with pytest.raises(ValueError, match=rf"^data\.name=.*broken .*: .*{said}") as caught:
        load(columns=PAIR)
    assert "\n" not in str(caught.value)


def test_files_with_other_columns_are_refused_with_the_columns(tmp_path):
    load = file_of(tmp_path / "broken", "a.jsonl", '{"q": "a", "a": "b"}')
    (tmp_path / "broken" / "b.jsonl").write_text('{"q": "a", "other": [1]}')
    with pytest.raises(ValueError, match=r"other: list<.* because column names don't match$"):
        load(columns=PAIR)


FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NUMBERS = itertools.count()  # equal files may have different names
STORED = {
    "pandas": (pa.list_(FILE), lambda file: [{"bytes": file, "path": f"{next(NUMBERS)}.png"}]),
    "pandas, one": (FILE, lambda file: {"bytes": file, "path": None}),
    "polars": (pa.large_list(pa.large_binary()), lambda file: [file]),
    "bytes": (pa.list_(pa.binary()), lambda file: [file]),
}


@pytest.mark.parametrize("writer", STORED)
def test_pictures_of_any_writer_are_shown(tmp_path, writer):
    kind, stored = STORED[writer]
    files = pa.array([stored(png("red")), stored(png("blue"))], kind)
    load = parquet_of(tmp_path / "shown", {"q": ["colour?"] * 2, "images": files})
    data = load(columns=Columns(prompt="q", images="images"))
    seen = [prompt.images[0].load()[0, 0].tolist() for prompt in data.train]
    assert seen == [[255, 0, 0], [0, 0, 255]] and data.quarantine == ()


def test_long_lists_of_pictures_are_not_decoded_by_the_table(tmp_path):
    kinds = {"q": datasets.Value("string"), "images": datasets.LargeList(datasets.Image())}
    rows = {"q": ["a", "b"], "images": [[{"bytes": x, "path": None}] for x in (png("red"), b"cut")]}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    (tmp_path / "long").mkdir()
    table.to_parquet(tmp_path / "long" / "train.parquet")
    columns = Columns(prompt="q", images="images")
    data = hub(name=str(tmp_path / "long"), split=ALL, columns=columns, seed=0)
    assert len(data.train) == 1 and data.quarantine[0].reason == "`images`: images is no picture"


@pytest.mark.parametrize("writer", STORED)
def test_a_question_about_another_picture_is_no_repetition(tmp_path, writer):
    kind, stored = STORED[writer]
    files = pa.array([stored(png(name)) for name in ("red", "blue", "red")], kind)
    load = parquet_of(tmp_path / "shown", {"q": ["colour?"] * 3, "a": list("rbx"), "i": files})
    data = load(columns=Columns(prompt="q", answer="a", images="i"), unique=True)
    assert [prompt.answer for prompt in data.train] == ["r", "b"]


@pytest.mark.parametrize("unique", [False, True])
def test_a_column_whose_name_has_a_dot_can_be_named(tmp_path, unique):
    chat = [{"right": "four"}]
    load = parquet_of(tmp_path / "flat", {"q.text": ["2+2?"], "a.text": ["4"], "a": chat})
    (own,) = load(columns=Columns(prompt="q.text", answer="a.text"), unique=unique).train
    assert (own.messages[0]["content"], own.answer, own.fields) == ("2+2?", "4", {"a": chat[0]})
    (part,) = load(columns=Columns(prompt="q.text", answer="a.right"), unique=unique).train
    assert part.answer == "four"


def test_a_folder_of_the_home_is_found(tmp_path, monkeypatch):
    file_of(tmp_path / "tables", "train.csv", "q,a\n1+1?,2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    (prompt,) = hub(name="~/tables", split=ALL, columns=PAIR, seed=0).train
    assert (prompt.answer, prompt.source) == ("2", "tables")


def test_values_that_only_tables_hold_are_fields_as_json_has_them(tmp_path):
    day, other = datetime.datetime(2020, 1, 2, 3), datetime.datetime(2021, 1, 2, 3)
    columns = {
        "q": ["a", "a"],
        "when": [day, other],
        "day": [day.date(), None],
        "long": [datetime.timedelta(hours=1), None],
        "price": [decimal.Decimal("1.50"), decimal.Decimal("0.00")],
        "deep": [[{"at": day}], []],
        "clock": [day.time(), None],
        "gap": pa.array([float("nan"), 2.5], from_pandas=False),
    }
    first, second = parquet_of(tmp_path / "odd", columns)(columns=Columns(prompt="q")).train
    assert first.fields == {
        "when": "2020-01-02T03:00:00", "day": "2020-01-02", "long": "1:00:00", "price": "1.50",
        "deep": [{"at": "2020-01-02T03:00:00"}], "gap": None, "clock": "03:00:00",
    }  # fmt: skip
    assert second.fields["price"] == "0.00" and second.fields["gap"] == 2.5


def test_rows_that_differ_in_their_bytes_alone_are_two(tmp_path):
    load = parquet_of(tmp_path / "bytes", {"q": ["a", "a", "a"], "raw": [b"x", b"y", b"x"]})
    data = load(columns=Columns(prompt="q"))
    assert [prompt.fields for prompt in data.train] == [{"raw": b"x"}, {"raw": b"y"}]
    assert [row.reason for row in data.quarantine] == ["equal to row 1"]


def test_a_decimal_answer_is_its_text_and_another_kind_is_named(tmp_path):
    answers = [decimal.Decimal("1.50"), decimal.Decimal("2.00")]
    load = parquet_of(tmp_path / "sums", {"q": ["a", "b"], "a": answers, "raw": [b"x", b"y"]})
    assert [prompt.answer for prompt in load(columns=PAIR).train] == ["1.50", "2.00"]
    with pytest.raises(ValueError, match=r"row 1: `answer` must be text or a number, not bytes$"):
        load(columns=Columns(prompt="q", answer="raw"))


def test_a_date_is_no_answer_since_its_format_is_not_known(tmp_path):
    """`datasets` reads texts of JSON lines that look like dates so."""
    load = file_of(tmp_path / "days", "train.jsonl", '{"q": "When?", "a": "2020-01-02"}')
    with pytest.raises(ValueError, match=r"`answer` must be text or a number, not datetime$"):
        load(columns=PAIR)


def test_a_chat_whose_last_turn_is_no_text_is_refused_by_that_turn(tmp_path):
    call = {"role": "assistant", "content": "", "tool_calls": ["add(1, 1)"]}
    load = parquet_of(tmp_path / "calls", {"messages": [[SAID[0], call]]})
    with pytest.raises(ValueError, match="row 1: message 2: `tool_calls` must be text, not a list"):
        load(columns=Columns(prompt="messages"))
