"""Data sets by name; a local folder replaces the hub."""

import io
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from tandem.data import Wording
from tandem.data.checks import OWN_KEYS
from tandem.data.hub import Columns, Split, hub
from tandem.data.rows import jsonl

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def questions(count):
    return [
        {"question": f"{i} + 1?", "answer": f"It is one more.\n#### {i + 1}", "level": i % 3}
        for i in range(count)
    ]


def folder(path, **splits):
    path.mkdir()
    for name, rows in splits.items():
        lines = "\n".join(json.dumps(row) for row in rows)
        (path / f"{name}.jsonl").write_text(lines)
    return str(path)


GSM = Columns(prompt="question", answer="answer", answer_pattern=r"####\s*(.+)")


def test_rows_of_a_folder_become_chats_with_the_answer_behind_the_hashes(tmp_path):
    name = folder(tmp_path / "sums", train=questions(40), test=questions(3))
    wording = Wording(instruction="Answer in \\boxed{}.")
    data = hub(name=name, split=Split(test="test"), columns=GSM, wording=wording, seed=0)
    first = data.test[0]
    assert first.messages == ({"role": "user", "content": "0 + 1?\n\nAnswer in \\boxed{}."},)
    assert (first.answer, first.source, first.fields) == ("1", "sums", {"level": 0})
    assert len(data.train) + len(data.eval) == 40
    assert len(data.eval) >= 1
    assert data.demonstrations == data.train


def test_parquet_text_and_a_limit(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    datasets.Dataset.from_list(questions(30)).to_parquet(path / "train.parquet")
    data = hub(
        name=str(path),
        split=Split(held_out=0.0),
        columns=Columns(prompt="question"),
        wording=Wording(chat=False),
        max_size=10,
        seed=0,
    )
    assert len(data.train) == 10
    assert all(p.text.endswith("+ 1?") and p.answer is None for p in data.train)
    assert data.eval == data.demonstrations == ()


def test_an_answer_of_a_column_of_floats_is_a_whole_number_where_it_can_be(tmp_path):
    """So are integers with gaps. The text 5.0 in a line of JSON is the answer as it was written."""
    path = tmp_path / "sums"
    path.mkdir()
    numbers = pa.array([5.0, None, float("nan"), 2.5, -3.0], from_pandas=False)
    pq.write_table(pa.table({"q": list("abcde"), "a": numbers}), path / "train.parquet")
    columns = Columns(prompt="q", answer="a")
    data = hub(name=str(path), split=Split(held_out=0.0), columns=columns, seed=0)
    assert [prompt.answer for prompt in data.train] == ["5", None, None, "2.5", "-3"]
    rows = path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": 5.0}')
    assert jsonl(path=str(rows), held_out=0, seed=0).train[0].answer == "5.0"


def test_a_column_of_messages_stays_the_chat_it_is(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    name = folder(tmp_path / "chats", train=[{"turns": chat}])
    data = hub(name=name, split=Split(), columns=Columns(prompt="turns"), seed=0)
    assert data.train[0].messages == tuple(chat)


def test_a_key_that_only_some_messages_have_is_of_those(tmp_path):
    """Arrow gives every message the keys of all, null where it has none."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chats = [[chat[0], {**chat[1], "name": "Ann"}], chat]
    path = tmp_path / "chats"
    path.mkdir()
    pq.write_table(pa.table({"turns": chats}), path / "train.parquet")
    columns = Columns(prompt="turns")
    data = hub(name=str(path), split=Split(held_out=0.0), columns=columns, seed=0)
    assert [list(prompt.messages) for prompt in data.train] == chats
    assert data.quarantine == ()


@pytest.mark.parametrize(
    ("wording", "said"),
    [
        (Wording(instruction="As JSON."), r"instruction='As JSON\.' .* chats, .*instruction=null$"),
        (Wording(chat=False), r"data\.wording\.chat=false .* chats, .*data\.wording\.chat=true$"),
    ],
)
def test_a_wording_that_a_chat_does_not_get_is_refused(tmp_path, wording, said):
    name = folder(tmp_path / "chats", train=[{"turns": [{"role": "user", "content": "Hi"}]}])
    with pytest.raises(ValueError, match=said):
        hub(name=name, split=Split(), columns=Columns(prompt="turns"), wording=wording, seed=0)


def test_rows_that_cannot_be_used_are_quarantined(tmp_path):
    rows = [*questions(2), {"question": "", "answer": "#### 1", "level": 0}]
    rows += [{"question": "unsolved", "answer": "nobody knows", "level": 0}]
    name = folder(tmp_path / "sums", train=rows)
    data = hub(name=name, split=Split(held_out=0.0), columns=GSM, seed=0)
    assert [(row.line, row.reason) for row in data.quarantine] == [
        (3, "`prompt` is empty"),
        (4, "the answer does not match '####\\\\s*(.+)'"),
    ]


@pytest.mark.parametrize(
    ("split", "columns", "said"),
    [
        (Split(train="tran"), GSM, 'data.split: subset None, split tran.*Unknown split "tran"'),
        (Split(subset="main"), GSM, "subset main.*'main' not found"),
        (Split(), Columns(prompt="problem"), r"data\.columns\.prompt=problem: .*'question'"),
        (Split(), Columns(prompt="question", answer="a"), r"data\.columns\.answer=a: "),
    ],
)
def test_a_name_that_is_not_there_is_one_line_with_the_flag(tmp_path, split, columns, said):
    name = folder(tmp_path / "sums", train=questions(2))
    with pytest.raises(ValueError, match=said) as caught:
        hub(name=name, split=split, columns=columns, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_share_that_is_none_is_refused_by_its_key(tmp_path, share):
    name = folder(tmp_path / "sums", train=questions(2))
    with pytest.raises(ValueError, match=rf"^data\.split\.held_out={share} must be a share"):
        hub(name=name, split=Split(held_out=share), columns=GSM, seed=0)


def test_a_missing_data_set_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"data\.name=.*nowhere") as caught:
        hub(name=str(tmp_path / "nowhere"), split=Split(), columns=GSM, seed=0)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r'pip install -e "\.\[hub\]"'):
        hub(name="any", split=Split(), columns=GSM, seed=0)


def test_preferences_are_texts_or_conversations_that_end_with_the_answer(tmp_path):
    def said(text, role="assistant"):
        return [{"role": "user", "content": "2+2?"}, {"role": role, "content": text}]

    rows = [
        {"question": "2+2?", "good": said("4"), "bad": said("5")},
        {"question": "3+3?", "good": said("6"), "bad": said("6")},
        {"question": "4+4?", "good": said("8", role="user"), "bad": said("9")},
    ]
    columns = Columns(prompt="question", chosen="good", rejected="bad")
    name = folder(tmp_path / "talks", train=rows)
    data = hub(name=name, split=Split(held_out=0.0), columns=columns, seed=0)
    assert [(p.chosen, p.rejected, p.fields) for p in data.pairs] == [("4", "5", {})]
    assert [row.line for row in data.quarantine] == [2, 3]
    assert "nothing is preferred" in data.quarantine[0].reason
    assert "does not end with the assistant's turn" in data.quarantine[1].reason
    texts = [{"question": "2+2?", "good": "4", "bad": "5"}]
    plain = folder(tmp_path / "texts", train=texts)
    data = hub(name=plain, split=Split(held_out=0.0), columns=columns, seed=0)
    assert (data.pairs[0].chosen, data.pairs[0].rejected) == ("4", "5")


def test_a_preference_column_that_is_not_there_names_its_flag(tmp_path):
    name = folder(tmp_path / "sums", train=questions(3))
    columns = Columns(prompt="question", chosen="better", rejected="answer")
    with pytest.raises(ValueError, match=r"^data\.columns\.chosen=better: .* has no such column"):
        hub(name=name, split=Split(), columns=columns, seed=0)


def as_dapo(question, answer, index):
    """The layout of DAPO-Math-17k."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve it. {question}"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


DAPO = Columns(prompt="prompt", answer="reward_model.ground_truth")


def test_a_part_of_a_column_and_questions_that_are_repeated(tmp_path):
    path = tmp_path / "dapo"
    path.mkdir()
    rows = [as_dapo(f"{i % 7} + 1?", str(i % 7 + 1), f"row {i}") for i in range(40)]
    datasets.Dataset.from_list(rows).to_parquet(path / "train.parquet")
    load = partial(hub, name=str(path), split=Split(held_out=0.0), columns=DAPO, seed=0)
    assert len(load().train) == 40
    data = load(unique=True)
    assert [prompt.answer for prompt in data.train] == [str(i + 1) for i in range(7)]
    assert data.train[0].messages == ({"role": "user", "content": "Solve it. 0 + 1?"},)
    assert data.train[0].fields["reward_model"]["style"] == "rule-lighteval/MATH_v2"
    assert [(row.line, row.reason) for row in data.quarantine] == [
        (8, "repeats a question, as 33 rows do (data.unique)")
    ]


@pytest.mark.parametrize("answer", ["reward_model.truth", "data_source.truth", "reward.truth"])
def test_a_part_that_no_column_has_is_named_with_those_that_there_are(tmp_path, answer):
    path = tmp_path / "dapo"
    path.mkdir()
    datasets.Dataset.from_list([as_dapo("1?", "1", "a")]).to_parquet(path / "train.parquet")
    columns = Columns(prompt="prompt", answer=answer)
    with pytest.raises(ValueError, match=rf"^data.columns.answer={answer}: .* has no such column"):
        hub(name=str(path), split=Split(held_out=0.0), columns=columns, seed=0)


def make_split(path, shown):
    """A split of identical questions, each about its own images."""
    path.mkdir()
    pixels = [[Image.new(mode, (6, 4), colour) for mode, colour in row] for row in shown]
    feature = {"problem": datasets.Value("string"), "images": datasets.List(datasets.Image())}
    rows = {"problem": ["<image>Find x."] * len(shown), "images": pixels}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(feature))
    table.to_parquet(path / "train.parquet")
    return str(path)


def test_a_column_of_pictures_is_shown(tmp_path):
    shown = [[("RGB", (9, 0, 0))], [("L", 7)], [("RGB", (1, 1, 1)), ("RGB", (2, 2, 2))]]
    columns = Columns(prompt="problem", images="images")
    data = hub(
        name=make_split(tmp_path / "shown", shown),
        split=Split(held_out=0.0),
        columns=columns,
        seed=0,
    )
    red, grey = data.train  # the same question of other pictures is another one
    assert red.messages == ({"role": "user", "content": "<image>Find x."},) and red.fields == {}
    assert red.images[0].load()[0, 0].tolist() == [9, 0, 0]
    assert grey.images[0].load()[0, 0].tolist() == [7, 7, 7]
    assert [bad.reason for bad in data.quarantine] == [
        "1 markers <image> for 2 pictures: give one for each, or none"
    ]


def write_unnamed(path, kind, contents):
    """A split of questions beside a column of encoded files, written without encoding them."""
    path.mkdir()
    schema = datasets.Features({"q": datasets.Value("string"), "file": kind}).arrow_schema
    files = [None if x is None else {"bytes": x or None, "path": None} for x in contents]
    files = pa.array(files, schema.field("file").type)
    rows = pa.table({"q": list("abcd")[: len(files)], "file": files}, schema=schema)
    pq.write_table(rows, path / "train.parquet")
    return partial(hub, name=str(path), split=Split(held_out=0.0), seed=0)


def test_a_damaged_picture_that_nobody_named_is_listed(tmp_path):
    whole = io.BytesIO()
    Image.new("RGB", (6, 4), RED).save(whole, format="PNG")
    files = [whole.getvalue(), b"cut", b"", None]
    data = write_unnamed(tmp_path / "shown", datasets.Image(), files)(columns=Columns(prompt="q"))
    first, last = data.train
    assert first.fields["file"].load()[0, 0].tolist() == [*RED] and last.fields == {"file": None}
    assert [(row.line, row.reason) for row in data.quarantine] == [
        (2, "`file`: file is no picture"),
        (3, "`file`: file has neither bytes nor a path"),
    ]


@pytest.mark.parametrize("kind", [datasets.Audio(), datasets.Video()])
def test_sound_and_film_that_nobody_named_are_not_read(tmp_path, kind):
    load = write_unnamed(tmp_path / "heard", kind, [b"damaged", b"too"])
    data = load(columns=Columns(prompt="q"))
    assert [prompt.fields for prompt in data.train] == [{}, {}] and data.quarantine == ()


def test_values_of_many_shapes_that_nobody_named_stay_fields(tmp_path):
    """`datasets` reads them as JSON, which needs a decoding of its own."""
    shapes = [{"tests": [{"a": 1}], "mixed": [1, "x"]}, {"tests": [{"b": "y"}], "mixed": 3}]
    rows = [{"q": word, **shape} for word, shape in zip("ab", shapes, strict=True)]
    name = folder(tmp_path / "mixed", train=rows)
    data = hub(name=name, split=Split(held_out=0.0), columns=Columns(prompt="q"), seed=0)
    assert [prompt.fields for prompt in data.train] == shapes


def test_columns_called_like_keys_of_a_row_are_left_out_as_the_page_says(tmp_path):
    row = {"q": "1+1?", "level": 3, **dict.fromkeys(OWN_KEYS, "x")}
    name = folder(tmp_path / "sums", train=[row])
    (prompt,) = hub(name=name, split=Split(), columns=Columns(prompt="q"), seed=0).train
    assert (prompt.source, prompt.answer, prompt.fields) == ("sums", None, {"level": 3})
    assert not prompt.is_pair
    page = (Path(__file__).parents[2] / "docs" / "howto" / "data.md").read_text()
    said = page.partition("are kept in `prompt.fields` for rewards, except")[2].partition("\n\n")[0]
    assert {*re.findall("`([a-z]+)`", said)} == {*OWN_KEYS}


def test_a_picture_that_nobody_named_is_no_demonstration_and_overrides_none(tmp_path):
    whole = {}
    for name, colour in (("picture", RED), ("image", (0, 0, 255))):
        file = io.BytesIO()
        Image.new("RGB", (6, 4), colour).save(file, format="PNG")
        whole[name] = [{"bytes": file.getvalue(), "path": None}]
    (tmp_path / "shown").mkdir()
    kinds = {"q": datasets.Value("string"), **dict.fromkeys(whole, datasets.Image())}
    schema = datasets.Features(kinds).arrow_schema
    files = {name: pa.array(x, schema.field(name).type) for name, x in whole.items()}
    pq.write_table(
        pa.table({"q": ["a"], **files}, schema=schema), tmp_path / "shown" / "train.parquet"
    )
    load = partial(hub, name=str(tmp_path / "shown"), split=Split(held_out=0.0), seed=0)
    with pytest.raises(ValueError, match=r"to train on them, set data\.columns\.picture=picture"):
        load(columns=Columns(prompt="q"))
    (shown,) = load(columns=Columns(prompt="q", picture="image")).train
    assert shown.media.load()[0, 0].tolist() == [0, 0, 255]


def test_a_repository_with_a_script_is_refused_in_one_line(tmp_path):
    name = folder(tmp_path / "sums", train=questions(2))
    (tmp_path / "sums" / "sums.py").write_text("")
    with pytest.raises(ValueError, match=r"^data\.name=.*sums .*scripts are no longer supported"):
        hub(name=name, split=Split(), columns=GSM, seed=0)


def test_a_column_of_pictures_that_nobody_named_is_told_by_the_key_that_names_it(tmp_path):
    name = make_split(tmp_path / "shown", [[("RGB", (9, 0, 0))], [("L", 7)]])
    with pytest.raises(ValueError, match=r"no usable row .* set data.columns.images=images"):
        hub(name=name, split=Split(), columns=Columns(prompt="problem"), seed=0)


def test_a_column_without_pictures_is_refused(tmp_path):
    name = folder(tmp_path / "sums", train=questions(3))
    with pytest.raises(ValueError, match=r"holds .*, not pictures"):
        hub(name=name, split=Split(), columns=Columns(prompt="question", images="level"), seed=0)


def test_columns_of_pictures_answer_and_compare(tmp_path):
    """Columns of the image feature, and of plain bytes."""
    encoded = [io.BytesIO() for _ in range(2)]
    for file, colour in zip(encoded, (RED, BLUE), strict=True):
        Image.new("RGB", (6, 4), colour).save(file, format="PNG")
    red, blue = (file.getvalue() for file in encoded)
    features = {"text": datasets.Value("string"), "better": datasets.Image(),
                "worse": datasets.Image(), "jpg": datasets.Value("binary")}  # fmt: skip
    rows = {"text": ["a", "b"], "better": [{"bytes": red, "path": None}] * 2,
            "worse": [{"bytes": blue, "path": None}] * 2, "jpg": [red, blue[:30]]}  # fmt: skip
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    (tmp_path / "shown").mkdir()
    table.to_parquet(tmp_path / "shown" / "train.parquet")
    load = partial(
        hub, name=str(tmp_path / "shown"), split=Split(held_out=0.0), wording=Wording(chat=False),
        seed=0,
    )  # fmt: skip
    pair, _ = load(columns=Columns(prompt="text", chosen="better", rejected="worse")).pairs
    assert pair.chosen_media.load()[0, 0].tolist() == [*RED] and pair.text == "a"
    assert pair.rejected_media.load()[0, 0].tolist() == [*BLUE] and pair.chosen is None
    data = load(columns=Columns(prompt="text", picture="jpg"), resize=[[8, 8], [8, 12]])
    (shown,) = data.demonstrations
    assert shown.media.load().shape == (8, 12, 3) and shown.size == (8, 12)
    assert data.quarantine[0].reason.startswith("`picture`: jpg is no picture")
