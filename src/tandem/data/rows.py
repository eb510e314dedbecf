"""Prompts from a file of JSON lines or plain text. Every row is checked; a bad row is listed, never
fatal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tandem.contracts import register_dataset
from tandem.contracts.parts import expand_home
from tandem.data.checks import OWN_KEYS, parse, to_prompt
from tandem.data.images import KEY as SHOWN
from tandem.data.images import with_images
from tandem.data.lines import as_row, number_lines
from tandem.data.pictures import KEY as ANSWER
from tandem.data.pictures import Resize, make_finisher, refuse_named, with_size
from tandem.data.records import (
    Data,
    InvalidRow,
    Rows,
    StreamMaker,
    groups_to_report,
    prompt_id,
)
from tandem.data.splits import choose, split_rows
from tandem.data.stream import PromptStream
from tandem.types import Picture, Prompt

# Keys whose null means that the row does not have them; the null of another reaches the reward.
OPTIONAL = (*OWN_KEYS, SHOWN, ANSWER, "negative_prompt")
Line = TypeVar("Line")  # a row as it was stored


@register_dataset(test_from="set data.test_path to a file")
def jsonl(
    *,
    path: str,  # the file of JSON lines that is trained on
    eval_path: str | None = None,
    test_path: str | None = None,  # a file for the third split; null: there is none
    held_out: float = 0.05,  # share of the rows kept for evaluation without `eval_path`
    pictures: bool = False,
    resize: Resize = None,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the part that is held out, and of the rows that `max_size` keeps
) -> Data:
    """Rows with `prompt` (text, sent unchanged) or `messages` (a chat), and optionally an `answer`,
    or a `chosen` and a `rejected` answer.

    `images` lists the picture files that the question of a row shows, one for each mark `<image>`;
    without a mark they precede the first question. With `pictures`, a row may name a file as the
    `picture` that answers it, and `chosen` and `rejected` name files too. Paths are relative to
    the folder of the rows. `resize` crops each picture to its middle square with that many pixels
    a side, or, for a list of sizes, to the size nearest in shape: the row then asks for a picture
    of that `height` and `width`, even if it only shows `images`.

    `id` and `source` are optional; every other key reaches the reward as `prompt.fields[key]`, and
    `negative_prompt` (text, may be empty) the guidance of a flow policy.
    Without `eval_path` a share `held_out` of the rows is kept for evaluation, chosen by content and
    seed alone, so adding others moves none; rows that ask the same stay together. At most
    `max_size` prompts are trained on, also chosen by content. Training rows with an answer or a
    picture are the demonstrations; those with a chosen and a rejected answer are the pairs.
    """
    files = _files(path, eval_path, test_path)
    splits = [
        None
        if file is None
        else read_rows(
            file,
            option=option,
            finish=finisher(file.parent, pictures=pictures, resize=resize),
        )
        for option, file in files.items()
    ]
    return assemble(*splits, held_out=held_out, max_size=max_size, curriculum=curriculum, seed=seed)


@register_dataset(prompts_alone=True, test_from="set data.test_path to a file")
def text(
    *,
    path: str,  # the text file that is trained on, one prompt per line
    eval_path: str | None = None,
    test_path: str | None = None,
    held_out: float = 0.05,  # share of the lines kept for evaluation without `eval_path`
    negative_prompt: str | None = None,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the part that is held out, and of the lines that `max_size` keeps
) -> Data:
    """Each line is a prompt, stripped of surrounding white space, and all share one
    `negative_prompt`; lines are split and limited like the rows of `jsonl`."""
    files = _files(path, eval_path, test_path)
    splits = [
        None
        if file is None
        else with_negative(negative_prompt, read_rows(file, option=option, parse=as_row))
        for option, file in files.items()
    ]
    return assemble(*splits, held_out=held_out, max_size=max_size, curriculum=curriculum, seed=seed)


def finisher(folder: Path, *, pictures: bool, resize: Resize) -> Callable[[Prompt], Prompt]:
    """A function that gives a row its pictures, those it shows and the answer, and their size."""
    answered = make_finisher(folder, pictures=pictures, resize=resize)
    return lambda prompt: with_size(with_images(answered(prompt), folder), resize)


def _files(path: str, eval_path: str | None, test_path: str | None) -> dict[str, Path | None]:
    """The files of the splits by the key that names them."""
    named = {"data.path": path, "data.eval_path": eval_path, "data.test_path": test_path}
    return {k: None if name is None else expand_home(name) for k, name in named.items()}


def assemble(
    rows: Rows,
    evaluation: Rows | None,
    test: Rows | None,
    *,
    held_out: float,
    max_size: int | None,
    curriculum: StreamMaker,
    seed: int,
) -> Data:
    """The data of `jsonl` from loaded rows."""
    if evaluation is None:
        rows, evaluation = split_rows(rows, held_out=held_out, seed=seed)
    train = choose(rows.prompts, max_size=max_size, seed=seed)
    return Data(
        train=train,
        eval=evaluation.prompts,
        test=() if test is None else test.prompts,
        demonstrations=tuple(p for p in train if p.answer is not None or p.media is not None),
        pairs=tuple(prompt for prompt in train if prompt.is_pair),
        quarantine=rows.bad + evaluation.bad + (() if test is None else test.bad),
        curriculum=curriculum,
    )


def read_rows(
    path: Path,
    *,
    option: str,
    parse: Callable[[bytes], dict] = parse,
    finish: Callable[[Prompt], Prompt] = refuse_named,
    source: str | None = None,
) -> Rows:
    """The rows of a file. `option` is the flag that named it, which messages start with.

    `source`: for rows that name none; None is the name of the file. Raises ValueError for a file
    without a row that can be read.
    """
    try:
        named = path.stem if source is None else source
        rows = check_rows(number_lines(path), parse, file=str(path), source=named, finish=finish)
    except OSError as error:
        raise ValueError(
            f"{option}={path}: {error.strerror or error}{absolute_hint(path)}"
        ) from None
    if not rows.prompts:
        first = f"; row {rows.bad[0].line}: {rows.bad[0].reason}" if rows.bad else ""
        found = f"no usable row among {len(rows.bad)}" if rows.bad else "the file has no rows"
        raise ValueError(f"{option}={path}: {found}{first}")
    return rows


def absolute_hint(path: Path) -> str:
    """The absolute path, for a message; empty if the path is already absolute."""
    return "" if path.is_absolute() else f": {path.absolute()}"


def identity(prompt: Prompt) -> Prompt:
    return prompt


def check_rows(
    lines: Iterable[tuple[int, Line]],
    parse: Callable[[Line], dict],
    *,
    file: str,
    source: str,
    finish: Callable[[Prompt], Prompt] = identity,
) -> Rows:
    """Parse, check and finish each numbered row; equal rows, and equal ids, count once."""
    prompts: list[Prompt] = []
    content: list[int] = []
    bad: list[InvalidRow] = []
    seen: dict[int, int] = {}
    for number, line in lines:
        try:
            row = parse(line)
            key = prompt_id(json.dumps(row, sort_keys=True, default=_opaque))
            row = _without_nulls(row)
            prompt = to_prompt(row, source=source, content=key)
            prompt = finish(prompt)
            groups_to_report(prompt)
            _unique(seen, prompt.id, number, given="id" in row)
        except ValueError as problem:
            bad.append(InvalidRow(file=file, line=number, reason=str(problem), text=_start(line)))
        else:
            prompts.append(prompt)
            content.append(key)
    return Rows(prompts=tuple(prompts), content=tuple(content), bad=tuple(bad))


def with_negative(negative: str | None, rows: Rows) -> Rows:
    """The rows, with a negative prompt where they name none."""
    if negative is None:
        return rows
    common = {"negative_prompt": negative}
    added = (replace(prompt, fields={**common, **prompt.fields}) for prompt in rows.prompts)
    return replace(rows, prompts=tuple(added))


def _unique(seen: dict[int, int], id: int, number: int, *, given: bool) -> None:
    first = seen.setdefault(id, number)
    if first != number:
        raise ValueError(f"{'the same id as' if given else 'equal to'} row {first}")


def _without_nulls(row: dict) -> dict:
    """The row without its optional keys that are null. Raises ValueError for a `negative_prompt`
    that is not text."""
    row = {key: value for key, value in row.items() if value is not None or key not in OPTIONAL}
    negative = row.get("negative_prompt", "")
    if not isinstance(negative, str):
        raise ValueError(f"`negative_prompt` must be text, not {type(negative).__name__}")
    return row


def _opaque(value: object) -> str:
    match value:
        case Picture():  # its size must not count, or data.resize would move rows between splits
            return value.file or value.name
        case bytes():
            return value.hex()
    # The repr of an object that JSON cannot hold may contain its address, which differs by run.
    return type(value).__name__


def _start(line: object) -> str:
    text = line[:200].decode(errors="replace") if isinstance(line, bytes) else str(line)[:200]
    return text.strip()
