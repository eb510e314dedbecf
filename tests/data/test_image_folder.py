"""Images with captions in folders and tar files: the rows that are read and those that are not."""

import io
import json
import os
import re
import tarfile
from codecs import BOM_UTF8
from dataclasses import replace

import pytest
from PIL import Image

from tandem.config import build, compose
from tandem.data import decoding, stored
from tandem.data.columns import Columns
from tandem.data.image_folder import image_folder
from tandem.data.rows import jsonl
from tandem.data.stored import in_shard
from tandem.policies.flow import admission

RED, BLUE, GREEN = (255, 0, 0), (0, 0, 255), (0, 255, 0)
NAMED = {RED: "red", BLUE: "blue", GREEN: "green"}


def png(colour, size=(6, 4)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format="PNG")
    return file.getvalue()


def lay(place, files):
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def pack(path, members):
    """Each member: name -> content, or a header with a content."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def header(name, **changes):
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


def load(place, **options):
    columns = options.pop("columns", Columns(prompt="text", picture="image"))
    return image_folder(path=str(place), columns=columns, seed=0, **{"held_out": 0} | options)


def observe(prompts):
    return [(p.text, NAMED[tuple(p.media.load()[0, 0].tolist())]) for p in prompts]


def test_a_text_beside_a_picture_is_its_caption(tmp_path):
    lay(tmp_path / "birds", {
        "a.v2.png": png(RED), "a.v2.txt": "a red one\n", "more/b.PNG": png(BLUE),
        "more/b.txt": "a blue one", "more/b.json": json.dumps({"size": 3}), ".hidden": b"",
    })  # fmt: skip
    data = load(tmp_path / "birds")
    assert observe(data.demonstrations) == [("a red one", "red"), ("a blue one", "blue")]
    assert [prompt.fields for prompt in data.train] == [{}, {"size": 3, "label": "more"}]
    assert {prompt.source for prompt in data.train} == {"birds"} and data.quarantine == ()


def test_folders_of_splits_are_the_splits(tmp_path):
    for split, colour in (("train", RED), ("validation", BLUE), ("test", GREEN)):
        lay(tmp_path / split, {"x.png": png(colour), "x.txt": split})
    data = load(tmp_path)
    splits = [observe(part) for part in (data.train, data.eval, data.test)]
    assert splits == [[("train", "red")], [("validation", "blue")], [("test", "green")]]


@pytest.mark.parametrize("split", ["test", "validation", "eval"])
def test_a_split_without_train_is_not_trained_on(tmp_path, split):
    lay(tmp_path / split, {"x.png": png(RED), "x.txt": "held out"})
    with pytest.raises(ValueError, match=rf"there is no train in this folder, only {split}$"):
        load(tmp_path)
    assert observe(load(tmp_path / split).train) == [("held out", "red")]


ROWS = [
    {"file_name": "a.png", "text": "one", "chosen_file_name": "in/b.png",
     "rejected_file_name": "c.png", "file_names": ["a.png", "c.png"]},
]  # fmt: skip


def test_metadata_names_pictures_as_imagefolder_has_it(tmp_path):
    lay(tmp_path, {"a.png": png(RED), "in/b.png": png(BLUE), "c.png": png(GREEN)})
    lay(tmp_path, {"metadata.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS)})
    (prompt,) = load(tmp_path).demonstrations
    assert observe([prompt]) == [("one", "red")]
    pairs = Columns(prompt="text", chosen="chosen", rejected="rejected")
    (pair,) = load(tmp_path, columns=pairs).pairs
    sides = pair.chosen_media, pair.rejected_media
    assert [NAMED[tuple(one.load()[0, 0].tolist())] for one in sides] == ["blue", "green"]
    (asked,) = load(tmp_path, columns=Columns(prompt="text", images="images")).train
    assert asked.text == "<image><image>one" and asked.media is None
    assert [NAMED[tuple(one.load()[0, 0].tolist())] for one in asked.images] == ["red", "green"]


def test_metadata_may_be_a_table_of_commas(tmp_path):
    lay(tmp_path, {"in/a.png": png(RED), "in/metadata.csv": 'file_name,text\na.png,"one, two"\n'})
    assert observe(load(tmp_path).train) == [("one, two", "red")]


def test_metadata_may_be_larger_than_any_picture(tmp_path, monkeypatch):
    rows = [{"file_name": "a.png", "text": f"{n}" * 900} for n in range(3)]
    lay(tmp_path, {"a.png": png(RED), "metadata.jsonl": "\n\n".join(map(json.dumps, rows))})
    monkeypatch.setattr(decoding, "MOST_BYTES", 2000)
    assert {p.text[0] for p in load(tmp_path).train} == {"0", "1", "2"}


@pytest.mark.parametrize(
    "content", [b"file_name,text\na.png,\xff\n", b'file_name\n"' + b"x" * 200_000]
)
def test_metadata_that_cannot_be_read_is_named_with_its_flag(tmp_path, content):
    lay(tmp_path, {"a.png": png(RED), "in/metadata.csv": content})
    with pytest.raises(ValueError, match=r"data\.path=.*: in/metadata\.csv cannot be read"):
        load(tmp_path)


def test_metadata_leads_to_no_file_outside_of_the_folder(tmp_path):
    lay(tmp_path, {"secret.png": png(RED), "data/a.png": png(BLUE)})
    names = ["../secret.png", str(tmp_path / "secret.png"), "b.png", 3, "a.png"]
    rows = [{"file_name": name, "text": "x"} for name in names]
    lay(tmp_path, {"data/metadata.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    data = load(tmp_path / "data")
    assert observe(data.train) == [("x", "blue")]
    assert [row.line for row in data.quarantine] == [1, 2, 3, 4]
    assert {row.reason.endswith("does not exist in the folder") for row in data.quarantine}


def test_a_name_in_a_caption_file_opens_no_picture(tmp_path):
    lay(tmp_path, {"secret.png": png(RED)})
    said = json.dumps({"images": [str(tmp_path / "secret.png")], "text": "?"})
    lay(tmp_path / "data", {"a.png": png(BLUE), "a.json": said})
    with pytest.raises(ValueError, match="`images` has no pictures"):
        load(tmp_path / "data")


def test_a_row_without_the_named_part_of_a_column_is_set_aside(tmp_path):
    cells = {"a": {"caption": "one"}, "b": {"tag": "b"}, "c": "text", "d": None}
    for key, cell in cells.items():
        lay(tmp_path, {f"{key}.png": png(RED), f"{key}.json": json.dumps({"meta": cell})})
    data = load(tmp_path, columns=Columns(prompt="meta.caption", picture="image"))
    assert [prompt.text for prompt in data.train] == ["one"]
    told = "has no 'meta.caption' (data.columns.prompt), only"
    assert [(row.line, row.reason) for row in data.quarantine[:2]] == [
        (2, f"{told} ['tag']"), (3, f"{told} 'text'"),
    ]  # fmt: skip
    (null,) = data.quarantine[2:]
    assert null.line == 4 and null.reason.startswith("no prompt")


def test_an_answer_whose_group_matched_nothing_does_not_match(tmp_path):
    lines = [{"text": said, "answer": said} for said in ("it is 5", "unknown")]
    lay(tmp_path, {"metadata.jsonl": "\n".join(map(json.dumps, lines))})
    columns = Columns(prompt="text", answer="answer", answer_pattern=r"(\d+)?$")
    data = load(tmp_path, columns=columns)
    assert [prompt.answer for prompt in data.train] == ["5"]
    assert [row.reason for row in data.quarantine] == [r"the answer does not match '(\\d+)?$'"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [(r"\d+$", "has no group; put"), ("#### (.*", "is no regular expression: missing )")],
)
def test_a_pattern_that_finds_no_answer_is_refused_by_its_flag(pattern, said):
    told = re.escape(f"data.columns.answer_pattern={pattern} {said}")
    with pytest.raises(ValueError, match=told):
        Columns(prompt="text", answer="answer", answer_pattern=pattern)


def test_a_bad_picture_is_set_aside_and_the_others_stay(tmp_path):
    lay(tmp_path, {"a.png": png(RED), "a.txt": "fine", "b.png": png(BLUE)[:40], "b.txt": "cut",
                   "c.png": png(GREEN), "d.txt": "alone", "model.pth": b"\x80\x04"})  # fmt: skip
    data = load(tmp_path)
    assert observe(data.train) == [("fine", "red")]
    reasons = {row.text: row.reason for row in data.quarantine}
    assert reasons.pop("") == "1 files end in .pth, which is not supported"
    assert reasons["b"].startswith("`picture`: b.png") and "no 'text'" in reasons["c"]
    assert "no 'image'" in reasons["d"] and reasons.keys() == {"b", "c", "d"}


def test_no_picture_stays_in_memory(tmp_path):
    lay(tmp_path, {"a.png": png(RED), "a.txt": "one"})
    (prompt,) = load(tmp_path).train
    lay(tmp_path, {"a.png": png(BLUE)})
    assert observe([prompt]) == [("one", "blue")]


def test_rows_ask_for_the_size_nearest_in_shape_and_get_it(tmp_path):
    lay(tmp_path, {"a.png": png(RED, (60, 40)), "a.txt": "wide", "b.png": png(BLUE, (20, 21)),
                   "b.txt": "square"})  # fmt: skip
    data = load(tmp_path, resize=[[16, 16], [16, 24]])
    shapes = {p.text: (p.media.shape, p.size) for p in data.train}
    assert shapes == {"wide": ((16, 24, 3), (16, 24)), "square": ((16, 16, 3), (16, 16))}
    shown = load(tmp_path, columns=Columns(prompt="text", images="image"), resize=[[8, 8], [8, 12]])
    assert [p.size for p in shown.train] == [(8, 12), (8, 8)]
    assert shown.train[0].images[0].shape == (40, 60, 3)


def test_one_side_is_the_size_of_all_whatever_img2dataset_says_of_the_files(tmp_path):
    lay(tmp_path, {"a.png": png(RED, (60, 40)), "a.txt": "one",
                   "a.json": '{"height": 40, "width": 60}'})  # fmt: skip
    (prompt,) = load(tmp_path, resize=8).train
    assert (prompt.size, dict(prompt.fields)) == (None, {})
    assert admission.refuse_size(prompt, None) is None


def test_both_pictures_of_a_pair_are_cut_as_the_chosen_one(tmp_path):
    lay(tmp_path, {"a.chosen.png": png(RED, (60, 40)), "a.rejected.png": png(BLUE, (20, 20))})
    pack(tmp_path / "in.tar", [("a.chosen.png", png(RED, (60, 40))), ("a.txt", b"one"),
                               ("a.rejected.png", png(BLUE, (20, 20)))])  # fmt: skip
    sizes, pair = [[16, 16], [16, 24]], Columns(prompt="text", chosen="chosen", rejected="rejected")
    (stored,) = load(tmp_path / "in.tar", columns=pair, resize=sizes).pairs
    row = {"prompt": "one", "chosen": "a.chosen.png", "rejected": "a.rejected.png"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    path = str(tmp_path / "rows.jsonl")
    (named,) = jsonl(path=path, pictures=True, resize=sizes, held_out=0, seed=0).pairs
    for one in (stored, named):
        assert one.size == (16, 24)
        assert one.chosen_media.shape == one.rejected_media.shape == (16, 24, 3)


def test_the_held_out_rows_are_the_same_at_any_size(tmp_path):
    for n in range(12):
        lay(tmp_path, {f"{n}.png": png((n, 0, 0)), f"{n}.txt": f"text {n}"})
    whole, cut = (load(tmp_path, resize=side, held_out=0.4) for side in (None, 8))
    assert 0 < len(whole.eval) < 12
    assert [(p.id, p.text) for p in whole.eval] == [(p.id, p.text) for p in cut.eval]


def test_digits_of_a_table_are_a_size_and_one_side_alone_is_none(tmp_path):
    lines = "file_name,text,height,width\na.png,one,16,24\nb.png,two,16,wide\n"
    lay(tmp_path, {"a.png": png(RED), "b.png": png(BLUE), "metadata.csv": lines})
    known, odd = load(tmp_path).train
    assert known.size == (16, 24)
    assert admission.refuse_size(odd, None) == "has only a height, or one that is not a number"
    absent = replace(odd, fields={"height": None, "width": None})
    assert admission.refuse_size(absent, None) is None


def test_whole_numbers_of_a_column_with_gaps_are_a_size(tmp_path):
    lines = "file_name,text,height,width\na.png,one,16.0,24.0\nb.png,two,16.5,24.0\n"
    lay(tmp_path, {"a.png": png(RED), "b.png": png(BLUE), "metadata.csv": lines})
    assert [prompt.size for prompt in load(tmp_path).train] == [(16, 24), None]
    sizes = [{"height": 16.0, "width": 24.0}, {"height": 16.5, "width": 24}]
    rows = [json.dumps({"prompt": f"{i}", **size}) for i, size in enumerate(sizes)]
    lay(tmp_path, {"rows.jsonl": "\n".join(rows)})
    data = jsonl(path=str(tmp_path / "rows.jsonl"), held_out=0, seed=0)
    assert [prompt.size for prompt in data.train] == [(16, 24), None]


def test_a_byte_order_mark_before_an_object_is_skipped(tmp_path):
    lay(tmp_path, {"a.png": png(RED), "a.json": BOM_UTF8 + b'{"text": "one"}'})
    data = load(tmp_path)
    assert observe(data.train) == [("one", "red")] and data.quarantine == ()


@pytest.mark.parametrize("resize", [[], [[16]], [[16, 0]], [16, 16]])
def test_what_is_no_list_of_sizes_is_refused_by_its_flag(tmp_path, resize):
    lay(tmp_path, {"a.png": png(RED), "a.txt": "one"})
    with pytest.raises(ValueError, match=r"data\.resize"):
        load(tmp_path, resize=resize)


def test_a_shard_is_read_as_webdataset_writes_it(tmp_path):
    long = "d/" + 120 * "k"
    members = [
        ("d/0001.jpg.png", png(RED)), ("d/0001.json", json.dumps({"text": "one"}).encode()),
        ("d/0002.png", png(BLUE)), ("d/0002.txt", b"two"), ("d/0002.cls", b"7"),
        (f"{long}.png", png(GREEN)), (f"{long}.txt", b"three"),
    ]  # fmt: skip
    members[0] = ("d/0001.png", png(RED))
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        own = members if kind != tarfile.USTAR_FORMAT else members[:5]
        path = tmp_path / f"{kind}.tar"
        with tarfile.open(path, "w", format=kind) as tar:
            for name, content in own:
                tar.addfile(header(name, size=len(content)), io.BytesIO(content))
        data = load(path)
        want = [("one", "red"), ("two", "blue"), ("three", "green")][: 3 if own is members else 2]
        assert observe(data.train) == want and data.quarantine == ()
        assert data.train[1].fields["label"] == "7"


def test_the_label_in_a_shard_is_the_enclosing_folder_of_the_member(tmp_path):
    labels = {
        "cats/a": "cats", "pets/./dogs/b": "dogs", "./birds/c": "birds",
        "./d": None, "/e": None, "f": None,
    }  # fmt: skip
    members = [
        member
        for key in labels
        for member in ((f"{key}.png", png(RED)), (f"{key}.txt", key.encode()))
    ]
    path = pack(tmp_path / "a.tar", members)
    assert {prompt.text: prompt.fields.get("label") for prompt in load(path).train} == labels
    asked = load(path, columns=Columns(prompt="label")).train
    assert [prompt.text for prompt in asked] == ["cats", "dogs", "birds"]


def test_pairs_and_questions_stand_in_a_shard(tmp_path):
    pack(tmp_path / "a.tar", [
        ("1.chosen.png", png(RED)), ("1.rejected.png", png(BLUE)), ("1.txt", b"red"),
    ])  # fmt: skip
    columns = Columns(prompt="text", chosen="chosen", rejected="rejected")
    (pair,) = load(tmp_path, columns=columns).pairs
    assert pair.chosen_media.load()[0, 0].tolist() == [*RED] and pair.chosen is None
    pack(tmp_path / "a.tar", [
        ("1.2.png", png(RED)), ("1.1.png", png(BLUE)), ("1.txt", b"which?"), ("1.answer.txt", b"2"),
    ])  # fmt: skip
    (asked,) = load(
        tmp_path, columns=Columns(prompt="text", images="images", answer="answer")
    ).train
    shown = [NAMED[tuple(one.load()[0, 0].tolist())] for one in asked.images]
    assert shown == ["blue", "red"] and asked.answer == "2"


def test_of_a_hostile_shard_the_good_rows_are_read_and_the_rest_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MOST_BYTES", 4096)
    secret = lay(tmp_path, {"secret.txt": "the key"}) / "secret.txt"
    pack(tmp_path / "x.tar", [
        ("../../etc/evil.png", png(RED)), ("../../etc/evil.txt", b"a name is no path"),
        ("l.txt", header("l.txt", type=tarfile.SYMTYPE, linkname=str(secret))),
        ("h.txt", header("h.txt", type=tarfile.LNKTYPE, linkname=str(secret))),
        ("f.txt", header("f.txt", type=tarfile.FIFOTYPE)),
        ("l.png", png(BLUE)), ("h.png", png(BLUE)), ("m.pyd", b"\x80\x04."), ("m.pth", b"\x80"),
        ("big.png", bytes(5000)), ("good.png", png(GREEN)), ("good.txt", b"good"),
    ])  # fmt: skip
    data = load(tmp_path / "x.tar")
    assert observe(data.train) == [("a name is no path", "red"), ("good", "green")]
    assert not list(tmp_path.rglob("evil*"))
    said = sorted(row.reason for row in data.quarantine if not row.line)
    assert said == [
        "1 files end in .pth, which is not supported",
        "1 files end in .pyd, which is not supported",
        "1 members are larger than 4096 bytes",
        "3 members are links, devices or sparse files",
    ]
    assert {row.text for row in data.quarantine if row.line} == {"x.tar:l", "x.tar:h"}


def broken(path, info):
    """A shard with one good row, then that header, then the good rows again."""
    good = pack(path, [("a.png", png(RED)), ("a.txt", b"red")]).read_bytes()
    body = good[: 4 * tarfile.BLOCKSIZE]
    path.write_bytes(body + info + good)
    return path


def header_of(size):
    """A header with that size, in the base 256 of large numbers."""
    info = header("b.png", size=0).tobuf()
    field = (0x80 << 88 | size) if size >= 0 else (1 << 96) + size
    block = bytearray(info)
    block[124:136] = field.to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "info",
    [
        header_of(10 << 30),
        header_of(-512),
        header_of(-(1 << 40)),
        b"\xff" * 512,
        b"broken" + bytes(506),
    ],
    ids=["ten gigabytes", "backwards", "far backwards", "no header", "no checksum"],
)
def test_a_shard_is_read_up_to_a_header_that_lies(tmp_path, info):
    files, refused = in_shard(broken(tmp_path / "x.tar", info))
    assert [file.name for file in files] == ["a.png", "a.txt"]
    assert [row.reason.startswith("is truncated after 2 files") for row in refused] == [True]


def test_a_header_of_names_cannot_lie_either(tmp_path):
    for said in (
        b"99 path=x\n",
        b"0 path=x\n",
        b"-5 path=x\n",
        b"no number\n",
        b"16 size=99999999\n",
    ):
        info = header("x", type=tarfile.XHDTYPE, size=len(said)).tobuf()
        shard = broken(tmp_path / "x.tar", info + said.ljust(512, b"\0"))
        files, (refused,) = in_shard(shard)
        assert len(files) == 2 and refused.reason.startswith("is truncated")


def test_a_shard_that_was_cut_off_gives_what_is_whole(tmp_path):
    whole = pack(tmp_path / "x.tar", [("a.png", png(RED)), ("a.txt", b"red"), ("b.png", png(BLUE))])
    content = whole.read_bytes()
    whole.write_bytes(content[: content.index(b"b.png") + 520])
    data = load(whole)
    assert observe(data.train) == [("red", "red")] and "is truncated" in data.quarantine[0].reason


def test_a_packed_archive_is_no_shard(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w:gz") as tar:
        tar.addfile(header("a.txt", size=1), io.BytesIO(b"x"))
    with pytest.raises(ValueError, match=r"no usable picture among 0; .*is truncated after 0"):
        load(tmp_path / "x.tar")


def test_a_place_without_pictures_is_told_by_its_flag(tmp_path):
    with pytest.raises(ValueError, match=r"data\.path=.*nowhere: there is no such folder or \.tar"):
        load(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ValueError, match=r"is a file but not a \.tar"):
        load(tmp_path / "a.csv")
    with pytest.raises(
        ValueError, match=r"no usable picture among 0; .*\.csv, which is not supported"
    ):
        load(tmp_path)


def test_a_file_larger_than_any_picture_is_not_read(tmp_path, monkeypatch):
    lay(tmp_path, {"a.png": png(RED), "a.txt": "one", "b.png": bytes(3000), "b.txt": "two"})
    monkeypatch.setattr(decoding, "MOST_BYTES", 2000)
    data = load(tmp_path)
    assert (
        observe(data.train) == [("one", "red")] and "larger than 2000" in data.quarantine[0].reason
    )


def test_links_out_of_the_folder_and_special_files_are_counted_and_not_read(tmp_path):
    lay(tmp_path, {"secret.txt": "hunter2", "data/a.png": png(RED), "data/b.png": png(BLUE)})
    place = tmp_path / "data"
    (place / "a.txt").symlink_to("../secret.txt")
    (place / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "shard.tar"):
        os.mkfifo(place / name)
    lay(place, {"in/said.txt": "blue"})
    (place / "b.txt").symlink_to("in/said.txt")
    data = load(place)
    assert observe(data.train) == [("blue", "blue")]
    reasons = [row.reason for row in data.quarantine]
    assert reasons[:2] == [
        "2 files are links that lead out of the folder", "2 files are pipes or devices"
    ]  # fmt: skip


def write_cache(place, files, revision="abc123"):
    """The layout of a repository in the hub's cache: files by hash, and links by name."""
    snapshot = place / "snapshots" / revision
    for number, (name, content) in enumerate(files.items()):
        lay(place, {f"blobs/{number:040x}": content})
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        (snapshot / name).symlink_to(f"{up}blobs/{number:040x}")
    return snapshot


def test_a_snapshot_of_the_hub_s_cache_has_its_rows_and_those_of_no_other_repository(tmp_path):
    files = {"train/a.png": png(RED), "train/a.txt": "one", "test/b.png": png(BLUE),
             "test/b.txt": "two", "train/c.txt": "three"}  # fmt: skip
    snapshot = write_cache(tmp_path / "datasets--me--shapes", files)
    other = write_cache(tmp_path / "datasets--me--secret", {"c.png": png(GREEN)})
    (snapshot / "train" / "c.png").symlink_to(other / "c.png")
    data = load(snapshot)
    assert (observe(data.train), observe(data.test)) == ([("one", "red")], [("two", "blue")])
    assert "1 files are links that lead out of the folder" in {x.reason for x in data.quarantine}
    (tmp_path / "here").symlink_to(snapshot)
    assert observe(load(tmp_path / "here" / "train").train) == [("one", "red")]


def test_a_folder_that_only_looks_like_the_hub_s_cache_leads_nowhere(tmp_path):
    files = {"a.png": png(RED), "a.txt": "one"}
    with pytest.raises(ValueError, match="no usable picture"):
        load(write_cache(tmp_path / "mine", files))
    fake = write_cache(tmp_path / "datasets--me--fake", files)
    (tmp_path / "datasets--me--fake" / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "datasets--me--fake" / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="no usable picture"):
        load(fake)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_no_pipe_is_waited_for_and_no_device_read(tmp_path, make):
    make(tmp_path / "x.png")
    with pytest.raises(ValueError, match="not a regular file"):
        decoding.read_file(tmp_path / "x.png")


def test_the_option_reads_a_folder(tmp_path):
    lay(tmp_path, {"a.png": png(RED), "a.txt": "one"})
    words = ["data=image_folder", f"data.path={tmp_path}", "data.held_out=0", "data.resize=[[8,8]]"]
    (prompt,) = build(compose(words).data, "data").demonstrations
    assert prompt.media.shape == (8, 8, 3)
