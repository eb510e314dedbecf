"""Prompts from a folder: `train`, `test` and perhaps `eval`, each a .jsonl or a .txt file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.contracts import register_dataset
from tandem.contracts.parts import expand_home
from tandem.data.checks import parse
from tandem.data.lines import as_row
from tandem.data.pictures import Resize
from tandem.data.records import Data, Rows, StreamMaker
from tandem.data.rows import absolute_hint, assemble, finisher, read_rows, with_negative
from tandem.data.stream import PromptStream
from tandem.types import Prompt

READERS = {".jsonl": parse, ".txt": as_row}


@register_dataset(test_from="put a test.jsonl or a test.txt into the folder")
def folder(
    *,
    path: str,  # the folder with the files train, test and eval
    held_out: float = 0.05,
    negative_prompt: str | None = None,
    pictures: bool = False,
    resize: Resize = None,
    max_size: int | None = None,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the part that is held out, and of the rows that `max_size` keeps
) -> Data:
    """Rows of `jsonl`, or lines of `text`, whose source is the name of the folder.

    Without a file `eval` a part `held_out` of `train` is kept for evaluation; `test` is never
    trained on, nor looked at before evaluation.split=test. `negative_prompt` is of prompts that
    bring none; `images`, `pictures` and `resize` are those of `jsonl`, and a name starts in the
    folder.
    Raises ValueError for a missing folder or one without a file `train`.
    """
    place = expand_home(path)
    if not place.exists():
        raise ValueError(f"data.path={path}: there is no such folder{absolute_hint(place)}")
    if place.is_file():
        kind = {".jsonl": "jsonl", ".txt": "text"}.get(place.suffix)
        raise ValueError(
            f"data.path={path} is a file, but data=folder reads the train.jsonl or train.txt of a "
            f"folder; {f'set data={kind}' if kind else 'name a folder'}"
        )
    finish = finisher(place, pictures=pictures, resize=resize)
    splits = [
        _rows(place, name, finish=finish, negative=negative_prompt)
        for name in ("train", "eval", "test")
    ]
    if splits[0] is None:
        raise ValueError(
            f"data.path={path}: there is no train.jsonl or train.txt in this folder"
            f"{absolute_hint(place)}"
        )
    return assemble(*splits, held_out=held_out, max_size=max_size, curriculum=curriculum, seed=seed)


def _rows(
    place: Path, name: str, *, finish: Callable[[Prompt], Prompt], negative: str | None
) -> Rows | None:
    """The rows of a split; None without one."""
    file = split_file(place, name)
    if file is None:
        return None
    parse, source = READERS[file.suffix], place.resolve().name
    rows = read_rows(file, option="data.path", parse=parse, finish=finish, source=source)
    return with_negative(negative, rows)


def split_file(place: Path, name: str) -> Path | None:
    """The one file of a split; None: there is none. Raises ValueError where there are several."""
    found = [file for suffix in READERS if (file := place / f"{name}{suffix}").exists()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise ValueError(f"data.path={place}: {names} are the same split; remove one of them")
    return found[0] if found else None
