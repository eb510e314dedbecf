"""Rows whose questions show images: found beside the file, one per marker, or left out."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from tandem.data.folder import folder
from tandem.data.images import show
from tandem.data.rows import jsonl
from tandem.data.stored import in_folder, in_shard
from tandem.types import IMAGE

USER = {"role": "user", "content": "which ?"}
SYSTEM = {"role": "system", "content": "look"}


@pytest.fixture
def place(tmp_path):
    for name, mode, colour in (
        ("a", "RGB", (9, 0, 0)),
        ("b", "RGBA", (0, 8, 0, 255)),
        ("c", "L", 7),
    ):
        Image.new(mode, (6, 4), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def load(place, rows, **options):
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return jsonl(path=str(place / "rows.jsonl"), seed=0, **{"held_out": 0} | options)


def test_a_row_shows_the_pictures_that_it_names(place):
    rows = [
        {"prompt": f"{IMAGE} or {IMAGE} ?", "images": ["a.png", "b.png"], "answer": "a", "n": 1}
    ]
    (prompt,) = load(place, rows).train
    assert prompt.text == f"{IMAGE} or {IMAGE} ?" and prompt.fields == {"n": 1}
    first, second = prompt.images
    assert (first.height, first.width) == (4, 6)
    assert first.load().shape == (4, 6, 3) and first.load().dtype == torch.uint8
    assert first.load()[0, 0].tolist() == [9, 0, 0] and second.load()[0, 0].tolist() == [0, 8, 0]


def test_rows_of_a_folder_show_the_pictures_that_they_name(place):
    (place / "train.jsonl").write_text(json.dumps({"prompt": "?", "images": ["a.png"]}))
    (prompt,) = folder(path=str(place), held_out=0, seed=0).train
    assert prompt.images[0].load()[0, 0].tolist() == [9, 0, 0] and prompt.fields == {}


def test_pictures_are_found_from_another_directory_than_the_rows_were(place, monkeypatch):
    """A reward that runs code may change the directory of the process."""
    monkeypatch.chdir(place)
    (shown,) = load(Path(), [{"prompt": "?", "images": ["a.png"]}]).train
    with tarfile.open("shard.tar", "w") as tar:
        tar.add("b.png")
    files = [*in_folder(Path())[0], *in_shard(Path("shard.tar"))[0]]
    monkeypatch.chdir("/")
    assert shown.images[0].load()[0, 0].tolist() == [9, 0, 0]
    assert {file.name for file in files if file.read()} >= {"a.png", "b.png"}


def test_a_grey_picture_is_read_as_red_green_and_blue(place):
    (prompt,) = load(place, [{"prompt": "?", "images": ["c.png"]}]).train
    assert prompt.images[0].load()[0, 0].tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"prompt": "which ?"}, f"{IMAGE}{IMAGE}which ?"),
        ({"messages": [USER]}, [f"{IMAGE}{IMAGE}which ?"]),
        ({"messages": [SYSTEM, USER]}, ["look", f"{IMAGE}{IMAGE}which ?"]),
        (
            {"messages": [SYSTEM, {**USER, "content": f"{IMAGE}?{IMAGE}"}]},
            ["look", f"{IMAGE}?{IMAGE}"],
        ),
    ],
)
def test_without_a_mark_pictures_stand_before_the_first_question(place, row, asked):
    (prompt,) = load(place, [{**row, "images": ["a.png", "c.png"]}]).train
    said = prompt.text or [turn["content"] for turn in prompt.messages]
    assert said == asked


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"prompt": f"{IMAGE} ?", "images": ["a.png", "b.png"]},
            "1 markers <image> for 2 pictures",
        ),
        ({"prompt": f"{IMAGE} ?", "images": []}, "1 markers <image> for 0 pictures"),
        ({"prompt": "?", "images": "a.png"}, "must be a list of file names"),
        ({"prompt": "?", "images": [3]}, "must be a list of file names"),
        ({"prompt": "?", "images": ["d.png"]}, "d.png is not there"),
        ({"prompt": "?", "images": ["rows.jsonl"]}, "rows.jsonl is no picture"),
    ],
)
def test_a_row_that_cannot_be_shown_is_left_out_by_number(place, row, reason):
    data = load(place, [{"prompt": "fine"}, row])
    assert [bad.line for bad in data.quarantine] == [2] and reason in data.quarantine[0].reason


def test_a_picture_is_named_by_what_it_shows(place):
    Image.new("RGB", (6, 4), (9, 0, 0)).save(place / "copy.png")
    rows = [{"prompt": "1", "images": ["a.png"]}, {"prompt": "2", "images": ["copy.png"]}]
    first, second = load(place, rows).train
    assert first.images == second.images
    assert show(torch.zeros(2, 3, 3).byte()) != show(torch.zeros(3, 2, 3).byte())


def test_the_same_question_about_another_picture_is_another_one(place):
    from tandem.data import split_overlap

    rows = [{"prompt": "?", "images": ["a.png"]}, {"prompt": "?", "images": ["c.png"]}]
    first, second = load(place, rows).train
    assert split_overlap([first, second], [second]) == ([first], [second])


def test_pictures_are_read_when_they_are_looked_at(place):
    (prompt,) = load(place, [{"prompt": "?", "images": ["a.png"]}]).train
    Image.new("RGB", (6, 4), (1, 2, 3)).save(place / "a.png")
    assert prompt.images[0].load()[0, 0].tolist() == [1, 2, 3]


def test_a_file_is_read_once_when_its_row_is_and_a_broken_one_is_left_out(place, monkeypatch):
    picture = torch.rand((64, 64, 3), generator=torch.Generator().manual_seed(0)).mul(255).byte()
    Image.fromarray(picture.numpy()).save(place / "a.jpg")
    (place / "half.jpg").write_bytes((place / "a.jpg").read_bytes()[:2000])
    opened, read = [], Image.open
    monkeypatch.setattr(
        Image, "open", lambda file, **said: opened.append(file) or read(file, **said)
    )
    rows = [{"prompt": "?", "images": [name]} for name in ("a.jpg", "half.jpg")]
    data = load(place, rows)
    assert [row.line for row in data.quarantine] == [2]
    assert "truncated" in data.quarantine[0].reason
    assert len(opened) == 2 and not any(isinstance(file, Path) for file in opened)
