"""The pictures of a sample table: their pixels in a file beside it, and grids to look at.

    samples/iteration_000020.jsonl             rows; a picture is a file and the place in it
    samples/iteration_000020.png               evaluation samples: a titled row for each prompt
    samples/iteration_000020_sampled.png       the same with the sampling of training
    samples/iteration_000020_best.png          the best training samples; _worst.png: the worst
    samples/pixels/iteration_000020_eval.png   the exact pixels, for each kind of row: of many
                                               large pictures in several files, _2.png, ...

Every evaluation has the same prompts and the same noise, so differences are due to training.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tandem.record import jsonl, pictures
from tandem.record.foreign import JSON_BYTES, check_file
from tandem.types import WRITTEN

Rows = Sequence[Mapping]

FIRST = "eval"  # the kind of row that is titled, and followed through training
FOLLOWED = 12  # most prompts of which a sample is followed
MOST_PIXELS = 2**24  # of a file: 48 MiB before compression, and a reader refuses over 64 MiB


def write_pictures(rows: Rows, table: Path) -> list[dict]:
    """The rows to write to a table: pictures are saved to files, which the rows name.

    Texts stay as they are.
    """
    placed = [dict(row) for row in rows]
    for kind, shown in split_by_kind(rows).items():
        draw_grid(shown, table.with_suffix(".png"))
        of_kind = [row for row in placed if row["kind"] == kind]
        sizes = [tuple(row["output"].shape[:2]) for row in of_kind]
        for size in dict.fromkeys(sizes):
            own = [row for row, other in zip(of_kind, sizes, strict=True) if other == size]
            named = f"{table.stem}_{kind}" + "_{}x{}".format(*size) * (len({*sizes}) > 1)
            _save_sheets(own, size, table.parent, f"pixels/{named}")
    return placed


def _save_sheets(rows: Sequence[dict], size: tuple[int, int], folder: Path, name: str) -> None:
    """Save pictures of one size to files of at most MOST_PIXELS or of one picture, and put the
    places of the pictures into the rows."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    most = max(1, MOST_PIXELS // math.prod(size))
    for first in range(0, len(rows), most):
        own = rows[first : first + most]
        file = f"{name}_{first // most + 1}.png" if first else f"{name}.png"
        pictures.save(lay_out(own), folder / file)
        for place, row in enumerate(own):
            row["output"] = {"file": file, "place": place, "size": list(size)}


def split_by_kind(rows: Rows) -> dict[str, list[Mapping]]:
    """The rows with a picture, by kind."""
    found: dict[str, list[Mapping]] = {}
    for row in rows:
        if isinstance(row["output"], Tensor):
            found.setdefault(row["kind"], []).append(row)
    return found


def lay_out(rows: Rows) -> Tensor:
    """A roughly square grid of all pictures of one kind. uint8 [H, W, 3]."""
    shown = [row["output"] for row in rows]
    return pictures.lay_out_grid(shown, math.ceil(math.sqrt(len(shown))))


def draw_grid(rows: Rows, path: Path) -> None:
    """Draw a grid for viewing, of rows of one kind: a row for each prompt, its samples as columns.

    Titles take twenty times as long as pictures, so only the grid of FIRST has them.
    """
    of_prompts: dict[str, list[Tensor]] = {}
    written: dict[str, list[str]] = {}
    for row in rows:
        of_prompts.setdefault(row["prompt"], []).append(row["output"])
        written.setdefault(row["prompt"], []).append(row.get(WRITTEN, ""))
    columns = max(map(len, of_prompts.values()))
    of_prompts = {prompt: [*map(pictures.shrink, shown)] for prompt, shown in of_prompts.items()}
    shapes = [picture.shape for shown in of_prompts.values() for picture in shown]
    size = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
    paper = torch.full(size, pictures.PAPER, dtype=torch.uint8)
    filled = [
        picture
        for shown in of_prompts.values()
        for picture in (*shown, *[paper] * (columns - len(shown)))
    ]
    grid = pictures.lay_out_grid(filled, columns)
    if rows[0]["kind"] == FIRST:
        captions = [
            text for own in written.values() for text in (*own, *[""] * (columns - len(own)))
        ]
        pictures.save_titled(
            grid,
            path,
            size=tuple(size[:2]),
            rows=list(of_prompts),
            captions=captions if any(captions) else (),
        )
    else:
        path = path.with_stem(f"{path.stem}_{rows[0]['kind']}")
        pictures.save(pictures.enlarge(grid, pictures.count_enlargement(size)), path)


def draw_progress(run_dir: Path) -> Path | None:
    """pictures.png in the run directory: a sample of each prompt at every evaluation, from the
    sample tables alone; None if they show no pictures."""
    frames: dict[int, dict[str, Tensor]] = {}
    for iteration, table in list_tables(run_dir).items():
        first = _first_of_each(table)
        if first:
            frames[iteration] = first
    if not frames:
        return None
    prompts = [p for p in frames[min(frames)] if all(p in seen for seen in frames.values())]
    prompts = prompts[:FOLLOWED]
    if not prompts:
        return None
    rows = {i: [pictures.shrink(seen[p]) for p in prompts] for i, seen in frames.items()}
    shown, strip = pictures.draw_strip(rows)
    shapes = [picture.shape[:2] for own in rows.values() for picture in own]
    size = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
    titles = [str(iteration) for iteration in shown]
    path = run_dir / "pictures.png"
    return pictures.save_titled(strip, path, size=size, columns=titles, rows=prompts)


def distance(pictures: Tensor, others: Tensor) -> Tensor:
    """The root of the mean squared difference of two pictures, on the scale from -1 to 1.

    Shape: [N, H, W, 3] of both -> [N].
    """
    difference = (pictures.double() - others.double()) / 127.5
    return difference.square().mean((-3, -2, -1)).sqrt()


def distance_to_start(rows: Rows, start: Path) -> float | None:
    """The mean distance of pictures from those in the table of the first evaluation, which had the
    same prompts and the same noise, over the pictures in both.

    None: there is no such table, or nothing to compare in it.
    """
    before = _number_pictures((row["prompt"], picture) for row, picture in _read_pictures(start))
    now = _number_pictures(
        (row["prompt"], row["output"]) for row in split_by_kind(rows).get(FIRST, ())
    )
    both = [name for name in now if name in before and now[name].shape == before[name].shape]
    if not both:
        return None
    apart = [distance(now[name].cpu(), before[name]) for name in both]
    return torch.stack(apart).mean().item()


def _number_pictures(shown: Iterable[tuple[str, Tensor]]) -> dict[tuple[str, int], Tensor]:
    """Pictures by prompt, and by index among those of the prompt."""
    found: dict[tuple[str, int], Tensor] = {}
    count: Counter[str] = Counter()
    for prompt, picture in shown:
        found[prompt, count[prompt]] = picture
        count[prompt] += 1
    return found


def list_tables(run_dir: Path) -> dict[int, Path]:
    """The sample tables of a run by iteration, in order."""
    found = sorted((run_dir / "samples").glob("iteration_*.jsonl"))
    return {parse_iteration(table): table for table in found}


def parse_iteration(path: Path) -> int:
    """The iteration of a file of samples, also of one that a kill left half-written."""
    return int(re.match(r"iteration_(\d+)", path.name)[1])


def _first_of_each(table: Path) -> dict[str, Tensor]:
    """The first picture of each evaluated prompt."""
    found: dict[str, Tensor] = {}
    for row, picture in _read_pictures(table):
        found.setdefault(row["prompt"], picture)
    return found


def _read_pictures(table: Path) -> Iterator[tuple[Mapping, Tensor]]:
    return ((row, shown) for row, shown in read_seen(table) if isinstance(shown, Tensor))


def read_seen(table: Path) -> Iterator[tuple[Mapping, str | Tensor]]:
    """The evaluation rows of a table (FIRST) with their outputs.

    Pictures are uint8 [H, W, 3].
    """
    return read_shown(table, [row for row in jsonl.read(table) if row["kind"] == FIRST])


def read_recorded(table: Path) -> list[dict]:
    """The rows of an iteration with their outputs, as they were recorded."""
    return [{**row, "output": seen} for row, seen in read_shown(table, jsonl.read(table))]


def read_shown(table: Path, rows: Rows) -> Iterator[tuple[Mapping, str | Tensor]]:
    """Rows of a table with their outputs: texts, and pictures that are exact to the bit.

    Pictures are uint8 [H, W, 3].
    """
    sheets: dict[str, Tensor] = {}
    for row in rows:
        where = row["output"]
        if isinstance(where, str):
            yield row, where
            continue
        if where["file"] not in sheets:
            place = table.parent / where["file"]
            if not place.resolve().is_relative_to(table.parent.resolve()):
                raise ValueError(f"{table}: {where['file']} is outside the run directory")
            check_file(place, JSON_BYTES)
            sheets[where["file"]] = pictures.load(place)
        yield row, pictures.cut_tile(sheets[where["file"]], where["size"], where["place"])
