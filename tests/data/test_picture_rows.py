"""Rows that name images, and folders of them: rows that are read, and rejects with a reason."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tandem.config import build, compose
from tandem.data.folder import folder
from tandem.data.rows import jsonl


def picture(path, size=(6, 4), colour=(255, 0, 0), mode="RGB", **options):
    path.parent.mkdir(exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)
    return path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def place(tmp_path):
    picture(tmp_path / "red.png")
    picture(tmp_path / "more" / "blue.png", colour=(0, 0, 255))
    return tmp_path


def load(place, rows, **options):
    options = {"pictures": True, "held_out": 0} | options
    return jsonl(path=write(place / "rows.jsonl", rows), seed=0, **options)


def test_a_row_shows_the_picture_that_it_names(place):
    rows = [
        {"prompt": "red", "picture": "red.png", "size": 3},
        {"prompt": "blue", "picture": str(place / "more" / "blue.png")},
        {"prompt": "asked only"},
    ]
    data = load(place, rows)
    red, blue = data.demonstrations
    assert red.media.shape == red.media.load().shape == (4, 6, 3)
    assert red.media.load().dtype == torch.uint8
    shown = [prompt.media.load()[0, 0].tolist() for prompt in (red, blue)]
    assert shown == [[255, 0, 0], [0, 0, 255]]
    assert red.fields == {"size": 3}
    assert [prompt.text for prompt in data.train] == ["red", "blue", "asked only"]
    assert data.pairs == data.quarantine == ()


def test_a_row_compares_the_pictures_that_it_names(place):
    rows = [{"prompt": "red", "chosen": "red.png", "rejected": "more/blue.png"}]
    (pair,) = load(place, rows).pairs
    assert pair.chosen_media.load()[0, 0].tolist() == [255, 0, 0]
    assert pair.rejected_media.load()[0, 0].tolist() == [0, 0, 255]
    assert (pair.chosen, pair.rejected, pair.is_pair) == (None, None, True)
    assert load(place, rows).demonstrations == ()


def test_the_same_row_compares_texts_without_the_option(place):
    (pair,) = load(
        place, [{"prompt": "a", "chosen": "b.png", "rejected": "c.png"}], pictures=False
    ).pairs
    assert (pair.chosen, pair.rejected, pair.chosen_media) == ("b.png", "c.png", None)


def test_the_file_of_a_picture_is_looked_at_once(place):
    rows = [{"prompt": str(i), "picture": "red.png"} for i in range(3)]
    first, *others = load(place, rows).train
    assert all(prompt.media is first.media for prompt in others)


def test_what_is_no_picture_to_learn_from_is_listed_with_its_reason(place):
    picture(place / "print.jpg", mode="CMYK", colour=(1, 2, 3, 4))
    picture(place / "glass.png", mode="RGBA", colour=(1, 2, 3, 4))
    picture(place / "same.png")
    (place / "text.png").write_text("no picture at all")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(
        place / "noise.png"
    )
    whole = (place / "noise.png").read_bytes()
    (place / "cut.png").write_bytes(whole[: len(whole) // 2])
    bad = {
        "not_there.png": "`picture`: not_there.png is not there",
        "print.jpg": "`picture`: print.jpg has colours of mode CMYK, not RGB",
        "glass.png": "`picture`: glass.png has transparent pixels",
        "text.png": "`picture`: text.png is no picture",
        "more": "`picture`: more cannot be read:",
        "cut.png": "`picture`: cut.png cannot be read:",
        "": "`picture` must be a file name, not ''",
        3: "`picture` must be a file name, not 3",
    }
    rows = [{"prompt": "good", "picture": "red.png"}]
    rows += [{"prompt": str(i), "picture": name} for i, name in enumerate(bad)]
    rows.append({"prompt": "pair", "chosen": "red.png", "rejected": "same.png"})
    rows.append({"prompt": "half", "chosen": "red.png", "rejected": "print.jpg"})
    data = load(place, rows)
    assert [prompt.text for prompt in data.train] == ["good"]
    want = [*bad.values(), "`chosen` and `rejected` show the same picture", "`rejected`: print.jpg"]
    assert [row.line for row in data.quarantine] == list(range(2, len(want) + 2))
    for row, reason in zip(data.quarantine, want, strict=True):
        assert row.reason.startswith(reason), row.reason


def test_a_picture_that_nobody_would_read_is_refused_by_its_flag(place):
    with pytest.raises(ValueError, match=r"row 1: `picture` names a file; set data\.pictures=true"):
        load(place, [{"prompt": "red", "picture": "red.png"}], pictures=False)
    with pytest.raises(
        ValueError, match=r"data\.resize=8 applies to pictures; set data\.pictures=true"
    ):
        load(place, [{"prompt": "red"}], pictures=False, resize=8)
    with pytest.raises(ValueError, match=r"data\.resize=0 must be a side in pixels"):
        load(place, [{"prompt": "red"}], resize=0)


def test_resizing_cuts_the_middle_square(place):
    wide = torch.zeros(8, 16, 3, dtype=torch.uint8)
    wide[:, 4:12] = 200
    Image.fromarray(wide.numpy()).save(place / "wide.png")
    (prompt,) = load(place, [{"prompt": "wide", "picture": "wide.png"}], resize=8).train
    assert torch.equal(prompt.media.load(), torch.full((8, 8, 3), 200, dtype=torch.uint8))
    (prompt,) = load(place, [{"prompt": "wide", "picture": "wide.png"}], resize=4).train
    assert torch.equal(prompt.media.load(), torch.full((4, 4, 3), 200, dtype=torch.uint8))


def test_a_picture_is_turned_as_its_camera_was(place):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    picture(place / "turned.jpg", exif=exif)
    (prompt,) = load(place, [{"prompt": "turned", "picture": "turned.jpg"}]).train
    assert prompt.media.shape == (6, 4, 3)


# Folders.


def test_a_folder_has_a_file_for_each_split(tmp_path):
    (tmp_path / "train.txt").write_text("one\ntwo\nthree\n")
    write(tmp_path / "test.jsonl", [{"prompt": "four", "source": "own", "negative_prompt": "x"}])
    (tmp_path / "eval.txt").write_text("five\n")
    data = folder(path=str(tmp_path), negative_prompt="blurry", seed=0)
    splits = (data.train, data.eval, data.test)
    assert [[p.text for p in split] for split in splits] == [
        ["one", "two", "three"],
        ["five"],
        ["four"],
    ]
    assert {p.source for p in (*data.train, *data.eval)} == {tmp_path.name}
    assert data.test[0].source == "own"
    assert {p.fields["negative_prompt"] for p in (*data.train, *data.eval)} == {"blurry"}
    assert data.test[0].fields["negative_prompt"] == "x"


@pytest.mark.parametrize(
    ("option", "name"), [("folder", ""), ("text", "/train.txt"), ("jsonl", "/rows.jsonl")]
)
def test_a_wave_is_the_home_of_the_user(tmp_path, monkeypatch, option, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my prompts").mkdir()
    (tmp_path / "my prompts" / "train.txt").write_text("one\ntwo\n")
    write(tmp_path / "my prompts" / "rows.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    cfg = compose([f"data={option}", f'data.path="~/my prompts{name}"', "data.held_out=0"])
    assert [prompt.text for prompt in build(cfg.data, "data").train] == ["one", "two"]


def test_without_eval_a_part_of_train_is_held_out_and_nothing_of_the_test(tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(f"prompt {i}" for i in range(100)))
    (tmp_path / "test.txt").write_text("\n".join(f"test {i}" for i in range(9)))
    data = folder(path=str(tmp_path), held_out=0.2, max_size=30, seed=0)
    assert len(data.train) == 30 and len(data.test) == 9
    assert data.eval and all(prompt.text.startswith("prompt") for prompt in data.eval)


def test_a_folder_is_refused_if_it_is_none_or_unclear(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.path=.*/nowhere: there is no such folder$"):
        folder(path=str(tmp_path / "nowhere"), seed=0)
    with pytest.raises(ValueError, match=r"there is no train\.jsonl or train\.txt in this folder"):
        folder(path=str(tmp_path), seed=0)
    for name, instead in (("a.txt", "set data=text"), ("a.jsonl", "set data=jsonl"), ("a", "name")):
        (tmp_path / name).write_text("red")
        with pytest.raises(ValueError, match=f"is a file, but data=folder reads .*; {instead}"):
            folder(path=str(tmp_path / name), seed=0)
    (tmp_path / "train.txt").write_text("one")
    write(tmp_path / "train.jsonl", [{"prompt": "one"}])
    with pytest.raises(ValueError, match=r"train\.jsonl and train\.txt are the same split"):
        folder(path=str(tmp_path), seed=0)


def test_pictures_of_a_folder_lie_in_it(place):
    pair = {"prompt": "red", "chosen": "red.png", "rejected": "more/blue.png"}
    write(place / "train.jsonl", [pair, {"prompt": "blue", "picture": "more/blue.png"}])
    overrides = ["data=folder", f"data.path={place}", "data.pictures=true", "data.resize=16"]
    data = build(compose([*overrides, "data.held_out=0"]).data, "data")
    assert data.pairs[0].chosen_media.shape == data.demonstrations[0].media.shape == (16, 16, 3)
