"""Prompts from a dataset on the Hugging Face hub, or from a folder that `datasets` can read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.contracts import register_dataset
from tandem.data.columns import (
    Columns,
    Stored,
    cell,
    parts_of,
    show_fields,
    split_chat,
    to_json_row,
    to_row,
    with_own_pictures,
)
from tandem.data.decoding import Decoding, read_file
from tandem.data.images import KEY, holds_pictures
from tandem.data.pictures import Resize, sizes_of
from tandem.data.records import AS_CHAT, Data, InvalidRow, Rows, StreamMaker, Wording, prompt_id
from tandem.data.rows import assemble, check_rows
from tandem.data.splits import check_share
from tandem.data.stream import PromptStream
from tandem.data.table import read_table
from tandem.types import Prompt

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The splits of a dataset by their use."""

    subset: str | None = None  # the configuration, if a dataset has several
    train: str = "train"  # the split that is trained on
    eval: str | None = None  # split for evaluation; null: `held_out` of the train split
    test: str | None = None  # split for the final test; null: none
    held_out: float = 0.05  # share of `train` kept for evaluation without `eval`


@register_dataset(downloads=True, test_from="set data.split.test to the name of a split")
def hub(
    *,
    name: str,  # name on the hub, or a folder of parquet or JSON-lines files
    split: Split,  # splits that are trained on, evaluated and tested
    columns: Columns,  # columns of the question, the answer and images
    wording: Wording = AS_CHAT,  # how a question becomes a prompt
    unique: bool = False,
    resize: Resize = None,
    max_size: int | None = None,  # largest number of training prompts; null: no limit
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the part that is held out, and of the rows that `max_size` keeps
) -> Data:
    """Rows are checked, split and limited like those of `jsonl`. A column that `columns` does not
    name becomes a field, unless it holds files other than pictures or `Columns` leaves it out.

    unique: keep only the first row of each question about the same `images`.
    `resize` is that of `jsonl`.
    """
    check_share("data.split.held_out", split.held_out)
    load = partial(
        load_rows, name, split.subset, columns=columns, wording=wording, unique=unique,
        resize=resize,
    )  # fmt: skip
    loaded = [None if one is None else load(one) for one in (split.train, split.eval, split.test)]
    return assemble(
        *loaded, held_out=split.held_out, max_size=max_size, curriculum=curriculum, seed=seed
    )


def load_rows(
    name: str,
    subset: str | None,
    split: str,
    *,
    columns: Columns,
    wording: Wording,
    unique: bool = False,
    resize: Resize = None,
) -> Rows:
    """The rows of a split of a dataset on the hub, with the named columns.
    Raises ValueError for a split without a usable row."""
    name = os.path.expanduser(name)  # no library does, and the shell not within data.name=~/tables
    table, pictures = read_table(name, subset, split, columns)
    kept = _distinct(table, columns) if unique else range(len(table))
    file, answers = f"{name}:{split}", Decoding(exact=True, sizes=sizes_of(resize))
    stored = partial(_with_stored_pictures, table, pictures)
    rows = check_rows(
        zip((place + 1 for place in kept), zip(kept, table.select(kept), strict=True), strict=True),
        lambda row: to_json_row(to_row(show_fields(stored(*row), columns), columns, answers)),
        file=file,
        source=name.rstrip("/").split("/")[-1],
        finish=partial(_with_pictures, resize=resize, column=columns.images),
    )
    if not rows.prompts:
        first = f"; row {rows.bad[0].line}: {rows.bad[0].reason}" if rows.bad else ""
        raise ValueError(f"data.name={name}: no usable row among {len(rows.bad)} of {split}{first}")
    prompts = tuple(wording.put(prompt) for prompt in rows.prompts)
    return replace(rows, prompts=prompts, bad=(*rows.bad, *_repeats(kept, len(table), file)))


def _with_stored_pictures(
    table: datasets.Dataset, pictures: Sequence[str], place: int, row: Mapping
) -> dict[str, object]:
    """The row, with its pictures as files that are read from the table on use."""

    def make_stored(column: str, number: int) -> Stored:
        return Stored(name=column, read=partial(_read, table, place, column, number))

    said = dict(row)
    for column in pictures:
        match row[column]:
            case list() as held:
                said[column] = [make_stored(column, number) for number in range(len(held))]
            case held if held is not None:
                said[column] = make_stored(column, 0)
    return said


def _read(table: datasets.Dataset, place: int, column: str, number: int) -> bytes:
    held = table[place][column]
    match held[number] if isinstance(held, list) else held:
        case bytes(content) | {"bytes": bytes(content)}:
            return content
        case {"path": str(path)}:
            return read_file(Path(path))
    raise ValueError("has neither bytes nor a path")


def _with_pictures(prompt: Prompt, *, resize: Resize, column: str | None) -> Prompt:
    """The prompt with its own pictures and those of its answers. Raises ValueError for pictures in
    a column that the configuration does not name."""
    if column is None and holds_pictures(prompt.fields.get(KEY)):
        raise ValueError(
            f"has pictures in its column `{KEY}`; to show them to a vision "
            f"model, set data.columns.images={KEY}"
        )
    return with_own_pictures(prompt, resize)


def _distinct(table: datasets.Dataset, columns: Columns) -> list[int]:
    """The first row of each question about the same pictures; reads their columns alone."""
    shown = [] if columns.images is None else [columns.images]
    asked = parts_of(columns.prompt, table.features)[0]
    places: dict[int, int] = {}
    for place, row in enumerate(table.select_columns([asked, *shown])):
        question, _ = split_chat(cell(row, columns.prompt, option="prompt"))
        pictures = [_names_of_pictures(row[column]) for column in shown]
        places.setdefault(prompt_id(json.dumps([question, *pictures], default=str)), place)
    return [*places.values()]


def _names_of_pictures(held: object) -> object:
    """Stored pictures by their content; those that are files elsewhere by their path."""
    match held:
        case list():
            return [*map(_names_of_pictures, held)]
        case bytes(content) | {"bytes": bytes(content)}:
            return hashlib.sha256(content).hexdigest()
    return held


def _repeats(kept: Sequence[int], there: int, file: str) -> tuple[InvalidRow, ...]:
    """The rows left out as repeated questions, as one entry, since they may be many."""
    if len(kept) == there:
        return ()
    first = next(place for place, number in enumerate([*kept, there]) if place != number)
    reason = f"repeats a question, as {there - len(kept)} rows do (data.unique)"
    return (InvalidRow(file=file, line=first + 1, reason=reason),)
