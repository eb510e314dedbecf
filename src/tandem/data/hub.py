"""Prompts from a data set of the Hugging Face hub, or from a folder that `datasets` can read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.contracts import register_dataset
from tandem.data.checks import OWN_KEYS
from tandem.data.images import KEY, holds_pictures, show_bytes, with_images
from tandem.data.records import AS_CHAT, Data, InvalidRow, Rows, StreamMaker, Wording, prompt_id
from tandem.data.rows import assemble, check_rows
from tandem.data.stream import PromptStream
from tandem.types import Picture, Prompt

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The parts of a data set by their use."""

    subset: str | None = None  # the configuration of a data set that has several
    train: str = "train"
    eval: str | None = None  # None: `held_out` of the train split
    test: str | None = None  # None: no third split
    held_out: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of question and answer; `reward_model.ground_truth` is a part of a column. All other
    columns but `id` and `source` become fields."""

    prompt: str  # text, or a list of messages
    answer: str | None = None
    chosen: str | None = None  # text, or a list of messages that ends with the answer
    rejected: str | None = None
    images: str | None = None  # pictures that the question shows, one or a list
    answer_pattern: str | None = None  # the answer is the first group of its last match


@register_dataset(downloads=True)
def hub(
    *,
    name: str,
    split: Split,
    columns: Columns,
    wording: Wording = AS_CHAT,
    unique: bool = False,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,
    seed: int,
) -> Data:
    """Rows are checked, split and limited as those of `jsonl` are.

    unique: of rows that ask the same question, whatever their other columns say, the first counts.
    """
    load = partial(load_rows, name, split.subset, columns=columns, wording=wording, unique=unique)
    loaded = [
        None if part is None else load(part) for part in (split.train, split.eval, split.test)
    ]
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
) -> Rows:
    """The rows of a split of a data set on the hub, with the columns that are named.
    Raises ValueError for a split without a usable row."""
    try:
        import datasets
    except ImportError:
        raise ValueError("data=hub needs a package: pip install 'tandem[hub]'") from None
    try:
        table = datasets.load_dataset(name, subset, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"data.name={name} (data.split: subset {subset}, split {split}): {reason}"
        ) from None
    _check_columns(name, columns, table.features)
    if columns.images is not None:
        table = _undecoded(table, columns.images)
    kept = _distinct(table, columns.prompt) if unique else range(len(table))
    file = f"{name}:{split}"
    rows = check_rows(
        zip((place + 1 for place in kept), table.select(kept), strict=True),
        lambda row: _as_row(row, columns),
        file=file,
        source=name.rstrip("/").split("/")[-1],
        finish=partial(_with_images, column=columns.images),
    )
    if not rows.prompts:
        first = f"; row {rows.bad[0].line}: {rows.bad[0].reason}" if rows.bad else ""
        raise ValueError(f"data.name={name}: no usable row among {len(rows.bad)} of {split}{first}")
    prompts = tuple(wording.put(prompt) for prompt in rows.prompts)
    return replace(rows, prompts=prompts, bad=(*rows.bad, *_repeats(kept, len(table), file)))


def _undecoded(table: datasets.Dataset, column: str) -> datasets.Dataset:
    """With the files of the pictures of a column, which are read when they are looked at.

    Raises ValueError for a column of other things.
    """
    import datasets

    feature = table.features[column]
    inner = feature.feature if isinstance(feature, datasets.List) else feature
    if not isinstance(inner, datasets.Image):
        raise ValueError(f"data.columns.images={column} holds {inner}, and no pictures")
    raw = datasets.Image(decode=False)
    return table.cast_column(column, datasets.List(raw) if inner is not feature else raw)


def _pictures(said: object) -> list[Picture]:
    """Of a row: one file, a list of them, or none."""
    files = said if isinstance(said, list) else [] if said is None else [said]
    return [
        show_bytes(Path(one["path"]).read_bytes() if one["bytes"] is None else one["bytes"])
        for one in files
    ]


def _with_images(prompt: Prompt, *, column: str | None) -> Prompt:
    """The prompt with the pictures that it shows. Raises ValueError for those of a column that
    nobody named."""
    if column is None and holds_pictures(prompt.fields.get(KEY)):
        raise ValueError(
            f"shows pictures in its column `{KEY}`, which is not named; set "
            f"data.columns.images={KEY}, for a model that sees"
        )
    return with_images(prompt, Path())


def _distinct(table: datasets.Dataset, column: str) -> list[int]:
    """The places of the rows that ask a question first; only its column is read."""
    places: dict[int, int] = {}
    for place, row in enumerate(table.select_columns([column.partition(".")[0]])):
        places.setdefault(prompt_id(json.dumps(_part(row, column))), place)
    return [*places.values()]


def _repeats(kept: Sequence[int], there: int, file: str) -> tuple[InvalidRow, ...]:
    """All rows that were left out for their question, as one: they may be a hundred to each."""
    if len(kept) == there:
        return ()
    first = next(place for place, number in enumerate([*kept, there]) if place != number)
    reason = f"repeats a question, as {there - len(kept)} rows do (data.unique)"
    return (InvalidRow(file=file, line=first + 1, reason=reason),)


def _check_columns(name: str, columns: Columns, features: Mapping) -> None:
    for option, column in _map_columns(columns).items():
        within = features
        for part in column.split("."):
            if not isinstance(within, Mapping) or part not in within:
                there = sorted(within) if isinstance(within, Mapping) else "no parts"
                raise ValueError(
                    f"data.columns.{option}={column}: {name} has no such column, only {there}"
                )
            within = within[part]


def _part(row: Mapping, column: str) -> object:
    """Of a row, or of a part of it that is missing where it is null."""
    return reduce(lambda within, name: within and within[name], column.split("."), row)


def _map_columns(columns: Columns) -> dict[str, str]:
    """Each field that is read -> the column that it stands in."""
    known = {
        "prompt": columns.prompt,
        "answer": columns.answer,
        "chosen": columns.chosen,
        "rejected": columns.rejected,
        "images": columns.images,
    }
    return {name: column for name, column in known.items() if column is not None}


def _as_row(row: dict, columns: Columns) -> dict:
    named = _map_columns(columns)
    read = {name: _part(row, column) for name, column in named.items()}
    question = read["prompt"]
    used = (*OWN_KEYS, *named.values())  # a column of which a part was read stays, as a field
    pair = {side: _last_turn(read[side]) for side in ("chosen", "rejected") if side in named}
    return {
        "messages" if isinstance(question, list) else "prompt": question,
        "answer": _answer(read.get("answer"), columns),
        **pair,
        **({"images": _pictures(read["images"])} if "images" in named else {}),
        **{key: value for key, value in row.items() if key not in used},
    }


def _last_turn(answer: object) -> object:
    """Of a conversation what was said last; it repeats the question before."""
    if not isinstance(answer, list):
        return answer
    last = answer[-1] if answer else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise ValueError("a chosen or rejected conversation does not end with the assistant's turn")
    return last.get("content")


def _answer(answer: object, columns: Columns) -> object:
    if columns.answer_pattern is None or not isinstance(answer, str):
        return answer
    matches = list(re.finditer(columns.answer_pattern, answer))
    if not matches:
        raise ValueError(f"the answer has no match of {columns.answer_pattern!r}")
    return matches[-1].group(1).strip()
