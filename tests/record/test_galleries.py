"""Images of a sample table: found where its rows point, by iteration and by mirror."""

import pytest
import torch
from PIL import Image

from tandem.record import galleries, jsonl, pictures
from tandem.record.run_record import RunRecord


def picture(level: int, size: int = 5) -> torch.Tensor:
    made = torch.randint(0, 256, (size, size, 3), dtype=torch.uint8)
    made[0, 0] = level
    return made


def row(kind: str, prompt: str, output) -> dict:
    facts = {"kind": kind, "source": "shapes", "prompt": prompt, "answer": None, "output": output}
    return facts | {"reward": 1.0, "parts": {"right": 1.0}, "length": 4, "truncated": False}


def make_gallery(level: int) -> list[dict]:
    """Two prompts with two images each under the ODE, and one each by the training sampler."""
    return [
        *(row("eval", p, picture(level + i)) for p in ("red", "blue") for i in range(2)),
        *(row("sampled", p, picture(level)) for p in ("red", "blue")),
    ]


@pytest.fixture
def record(tmp_path) -> RunRecord:
    record = RunRecord(tmp_path)
    record.begin("seed: 0\n", seed=0, command=["train.py"])
    return record


def find_image(folder, row: dict) -> torch.Tensor:
    where = row["output"]
    sheet = pictures.load(folder / where["file"])
    return pictures.cut_tile(sheet, where["size"], where["place"])


def test_a_row_says_where_the_very_pixels_of_its_picture_are(record):
    rows = [*make_gallery(10), row("greedy", "a text", "stays a text")]
    record.samples(20, rows)
    best = [row("best", "red", picture(7))]
    record.samples(20, best)
    folder = record.folder / "samples"
    written = jsonl.read(folder / "iteration_000020.jsonl")
    assert [r["kind"] for r in written] == [r["kind"] for r in (*rows, *best)]
    for was, now in zip((*rows, *best), written, strict=True):
        if was["kind"] == "greedy":
            assert now == was
        else:
            assert torch.equal(find_image(folder, now), was["output"])


@pytest.mark.parametrize(
    ("most", "count"),
    [
        (3 * 40 * 40, 3),
        (1000, 7),  # fewer pixels than one picture has
    ],
)
def test_pictures_too_large_for_one_file_are_read_from_several(record, monkeypatch, most, count):
    monkeypatch.setattr(galleries, "MOST_PIXELS", most, raising=False)
    monkeypatch.setattr(galleries, "JSON_BYTES", 4 * 3 * 40 * 40)  # bytes that a reader accepts
    rows = [row("eval", f"prompt {i}", picture(i, 40)) for i in range(7)]
    record.samples(0, rows)
    table = record.folder / "samples" / "iteration_000000.jsonl"
    assert all(
        torch.equal(seen, was["output"])
        for was, (_, seen) in zip(rows, galleries.read_seen(table), strict=True)
    )
    assert record.distance_to_start(rows) == 0
    names = {path.name for path in (table.parent / "pixels").iterdir()}
    parts = [f"_{part}" for part in range(2, count + 1)]
    assert names == {f"iteration_000000_eval{part}.png" for part in ("", *parts)}
    record.cut(0)
    assert not [*(table.parent / "pixels").iterdir()]


def test_a_file_of_the_most_pixels_is_one_that_is_read():
    assert 1.1 * 3 * galleries.MOST_PIXELS < galleries.JSON_BYTES  # noise does not compress
    assert 1.1 * galleries.MOST_PIXELS < Image.MAX_IMAGE_PIXELS  # Pillow warns above it


def test_grids_to_look_at_have_a_row_for_each_prompt_and_a_column_for_each_sample(record):
    record.samples(3, make_gallery(10))
    by_eye = {p.name for p in (record.folder / "samples").glob("*.png")}
    assert by_eye == {"iteration_000003.png", "iteration_000003_sampled.png"}
    sizes = [
        Image.open(record.folder / "samples" / f"iteration_000003{end}.png").size
        for end in ("", "_sampled")
    ]
    times = pictures.count_enlargement((5, 5))
    assert sizes[1] == (times * (5 + 2 * pictures.GAP), times * (2 * 5 + 3 * pictures.GAP))
    two_columns = times * (2 * 5 + 3 * pictures.GAP)
    assert two_columns < sizes[0][0] < 2.5 * two_columns  # titles stand at the left
    assert sizes[0][1] == pytest.approx(sizes[1][1], abs=20)


def test_pictures_of_iterations_that_were_cut_go(record):
    for iteration in (0, 20, 40):
        record.samples(iteration, make_gallery(iteration))
    record.cut(20)
    left = {p.name for p in (record.folder / "samples").rglob("*.*")}
    assert left == {
        "iteration_000000.jsonl", "iteration_000000.png", "iteration_000000_sampled.png",
        "iteration_000000_eval.png",
    } | {"iteration_000000_sampled.png"}  # fmt: skip


def test_a_strip_follows_the_first_picture_of_each_prompt(record, monkeypatch):
    strips = {}
    monkeypatch.setattr(
        pictures, "save_titled", lambda sheet, path, **kept: strips.update(sheet=sheet, **kept)
    )
    for iteration in (20, 0, 5):
        record.samples(iteration, make_gallery(100 + iteration))
    galleries.draw_progress(record.folder)
    assert strips["columns"] == ["0", "5", "20"]
    assert strips["rows"] == ["red", "blue"]
    tiles = [pictures.cut_tile(strips["sheet"], (5, 5), place) for place in range(6)]
    levels = [tile[0, 0, 0].item() for tile in tiles]
    assert levels == [100, 105, 120] * 2


def test_a_run_of_texts_has_no_strip(record):
    record.samples(0, [row("eval", "red", "a text")])
    assert galleries.draw_progress(record.folder) is None
    assert not (record.folder / "samples" / "pixels").exists()
    assert galleries.draw_progress(record.folder / "nowhere") is None


def test_large_pictures_are_reduced_by_means_and_small_ones_stay():
    large = torch.zeros(2 * pictures.ENOUGH, 2 * pictures.ENOUGH, 3, dtype=torch.uint8)
    large[::2] = 200
    small = pictures.shrink(large)
    assert small.shape == (pictures.ENOUGH, pictures.ENOUGH, 3)
    assert small.eq(100).all()
    kept = picture(3)
    assert torch.equal(pictures.shrink(kept), kept)


def test_the_distance_is_to_the_pictures_of_the_first_evaluation_and_survives_a_cut(record):
    assert record.distance_to_start(make_gallery(10)) is None  # nothing was seen before
    first, later = make_gallery(10), make_gallery(99)
    record.samples(0, first)
    record.samples(0, [row("best", "red", picture(7))])
    want = [
        (a["output"].double() - b["output"].double()).square().mean().sqrt().item() / 127.5
        for a, b in zip(first, later, strict=True)
        if a["kind"] == "eval"
    ]
    assert record.distance_to_start(first) == 0
    before = record.distance_to_start(later)
    assert before == pytest.approx(sum(want) / 4)
    record.samples(20, later)
    again = RunRecord(record.folder)
    again.cut(20)  # as in a resumed run
    assert again.distance_to_start(later) == before
    fewer = [r for i, r in enumerate(later) if i not in (1, 2)]  # the first of red, a second blue
    assert again.distance_to_start(fewer[:1]) == pytest.approx(want[0])
    assert again.distance_to_start([row("eval", "red", picture(3, size=7))]) is None
    assert again.distance_to_start([row("eval", "red", "a text")]) is None
    again.cut(0)
    assert again.distance_to_start(later) is None
