"""Prompts from a data set of the Hugging Face hub, or from a folder that `datasets` can read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tandem.contracts import register_dataset
from tandem.data.checks import OWN_KEYS
from tandem.data.records import AS_CHAT, Data, StreamMaker, Wording
from tandem.data.rows import Rows, assemble, check_rows
from tandem.data.stream import PromptStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which part of the data set is used for what."""

    subset: str | None = None  # the configuration of a data set that has several
    train: str = "train"
    eval: str | None = None  # None: `held_out` of the train split
    test: str | None = None  # None: no third split
    held_out: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where question and answer stand. All other columns but `id` and `source` become fields."""

    prompt: str  # text, or a list of messages
    answer: str | None = None
    chosen: str | None = None  # text, or a list of messages that ends with the answer
    rejected: str | None = None
    answer_pattern: str | None = None  # the answer is the first group of its last match


@register_dataset
def hub(
    *,
    name: str,
    split: Split,
    columns: Columns,
    wording: Wording = AS_CHAT,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,
    seed: int,
) -> Data:
    """Rows are checked, split and limited as those of `jsonl` are."""
    loaded = [
        None if part is None else load_rows(name, split.subset, part, columns, wording)
        for part in (split.train, split.eval, split.test)
    ]
    return assemble(
        *loaded, held_out=split.held_out, max_size=max_size, curriculum=curriculum, seed=seed
    )


def load_rows(
    name: str, subset: str | None, split: str, columns: Columns, wording: Wording
) -> Rows:
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
    _check_columns(name, columns, table.column_names)
    rows = check_rows(
        enumerate(table, start=1),
        lambda row: _as_row(row, columns),
        file=f"{name}:{split}",
        source=name.rstrip("/").split("/")[-1],
    )
    if not rows.prompts:
        raise ValueError(f"data.name={name}: no usable row among {len(rows.bad)} of {split}")
    return replace(rows, prompts=tuple(wording.put(prompt) for prompt in rows.prompts))


def _check_columns(name: str, columns: Columns, given: Iterable[str]) -> None:
    for option, column in _named(columns).items():
        if column not in given:
            raise ValueError(
                f"data.columns.{option}={column}: {name} has no such column, only {sorted(given)}"
            )


def _named(columns: Columns) -> dict[str, str]:
    """What is read -> the column that it stands in."""
    known = {
        "prompt": columns.prompt,
        "answer": columns.answer,
        "chosen": columns.chosen,
        "rejected": columns.rejected,
    }
    return {name: column for name, column in known.items() if column is not None}


def _as_row(row: dict, columns: Columns) -> dict:
    question, named = row[columns.prompt], _named(columns)
    used = (*OWN_KEYS, *named.values())
    pair = {side: _last_turn(row[named[side]]) for side in ("chosen", "rejected") if side in named}
    return {
        "messages" if isinstance(question, list) else "prompt": question,
        "answer": None if columns.answer is None else _answer(row[columns.answer], columns),
        **pair,
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
