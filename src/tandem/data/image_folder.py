"""Pictures with captions, from a folder or from tar files in the format of WebDataset."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tandem.contracts import register_dataset
from tandem.contracts.parts import expand_home
from tandem.data.captioned import METADATA, Sample, group, metadata, read_sample
from tandem.data.captioned import split_first as of_member
from tandem.data.captioned import split_last as of_file
from tandem.data.columns import Columns, to_row, with_own_pictures
from tandem.data.decoding import Decoding
from tandem.data.pictures import Resize, sizes_of
from tandem.data.records import Data, InvalidRow, Rows, StreamMaker
from tandem.data.rows import absolute_hint, assemble, check_rows, with_negative
from tandem.data.stored import SHARD, in_folder, in_shard
from tandem.data.stream import PromptStream

SPLITS = {"train": ("train",), "eval": ("eval", "validation", "val"), "test": ("test",)}
TEXT_AND_PICTURE = Columns(prompt="text", picture="image")


@register_dataset(test_from="put folders named train and test into data.path")
def image_folder(
    *,
    path: str,  # the folder, or a .tar file
    columns: Columns = TEXT_AND_PICTURE,  # columns of the text, the answer and images
    held_out: float = 0.05,
    negative_prompt: str | None = None,
    resize: Resize = None,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the part that is held out, and of the rows that `max_size` keeps
) -> Data:
    """A picture with its text (x.png, x.txt) and the object in x.json is a row with the columns
    image, text and the keys of the object. So is a line of metadata.jsonl or metadata.csv that
    names files: `file_name` for the column image, `chosen_file_name` for chosen. In a .tar, files
    with the same name up to the first dot form a row: x.png, x.chosen.png, x.1.png.

    Subfolders train, test and eval (or validation) are the splits; without them all rows are train.
    Every picture is decoded once at the start to set bad ones aside; none stays in memory.
    `resize`, `held_out` and `max_size` are those of `jsonl`.
    Raises ValueError for a folder without a usable row, or with other splits but no `train`.
    """
    place = expand_home(path)
    if not place.exists():
        raise ValueError(f"data.path={path}: there is no such folder or .tar{absolute_hint(place)}")
    if place.is_file() and place.suffix != SHARD:
        raise ValueError(f"data.path={path} is a file but not a .tar; name a folder")
    load = partial(_load, source=place.resolve().stem, columns=columns, resize=resize)
    splits = [None if own is None else with_negative(negative_prompt, load(own)) for own in
              _find_splits(place).values()]  # fmt: skip
    return assemble(*splits, held_out=held_out, max_size=max_size, curriculum=curriculum, seed=seed)


def _find_splits(place: Path) -> dict[str, Path | None]:
    """The folder of each split; None: the split is missing. Raises ValueError for splits without
    `train`, which would be trained on."""
    found = {
        split: next((place / name for name in names if (place / name).is_dir()), None)
        for split, names in SPLITS.items()
    }
    if found["train"]:
        return found
    if held_out := [own.name for own in found.values() if own]:
        raise ValueError(
            f"data.path={place}: there is no train in this folder, only {' and '.join(held_out)}"
            f"{absolute_hint(place)}"
        )
    return {"train": place, "eval": None, "test": None}


def _load(place: Path, *, source: str, columns: Columns, resize: Resize) -> Rows:
    samples, refused = list_samples(place)
    answers = Decoding(exact=True, sizes=sizes_of(resize))
    rows = check_rows(
        enumerate(samples, start=1),
        lambda sample: to_row(read_sample(sample), columns, answers),
        file=str(place),
        source=source,
        finish=partial(with_own_pictures, resize=resize),
    )
    bad = (*refused, *rows.bad)
    if not rows.prompts:
        first = f"; {bad[0].text} {bad[0].reason}" if bad else ""
        raise ValueError(f"data.path={place}: no usable picture among {len(samples)}{first}")
    return Rows(prompts=rows.prompts, content=rows.content, bad=bad)


def list_samples(place: Path) -> tuple[list[Sample], list[InvalidRow]]:
    """All samples of a folder and its tar files, or of one tar file, and the refused files."""
    if place.is_file():
        return _samples_of_shard(place)
    found, refused = in_folder(place)
    files = {file.name: file for file in found}
    shards = [place / name for name in files if name.endswith(SHARD)]
    samples = metadata(place, files)
    reasons: list[str] = []
    if not samples:
        loose = [f for name, f in files.items() if not name.endswith((SHARD, *METADATA))]
        samples, reasons = group(loose, of_file)
    refused += [InvalidRow(file=str(place), line=0, reason=reason) for reason in reasons]
    for more, bad in map(_samples_of_shard, shards):
        samples, refused = samples + more, refused + bad
    return samples, refused


def _samples_of_shard(shard: Path) -> tuple[list[Sample], list[InvalidRow]]:
    files, refused = in_shard(shard)
    samples, reasons = group(files, of_member, prefix=f"{shard.name}:")
    return samples, refused + [InvalidRow(file=str(shard), line=0, reason=r) for r in reasons]
