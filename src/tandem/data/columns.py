"""Columns of a table as the keys of a row: question, answer, pairs, and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path

from tandem.contracts.bounds import values_of
from tandem.contracts.parts import fields_of
from tandem.data.checks import OWN_KEYS
from tandem.data.decoding import SHOWN, Decoding
from tandem.data.images import KEY, show_stored, with_images
from tandem.data.pictures import KEY as ANSWER
from tandem.data.pictures import Resize, with_pictures, with_size
from tandem.types import Picture, Prompt

ANSWERS = (ANSWER, "chosen", "rejected")  # columns whose pictures are training targets
EXACT = 1 << 53  # up to here a float holds every integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of question and answer; `reward_model.ground_truth` is a part of a column. All other
    columns become fields, except those called `prompt`, `messages`, `answer`, `chosen`, `rejected`,
    `id` or `source`, as keys of a row: they are left out, since their meaning is not known."""

    # Column of the question: a text, or a list of messages. A last turn of the assistant is the
    # answer, where neither `answer` nor a pair nor a picture is named.
    prompt: str
    # Column of the right answer; a.b: a column, or field b of column a; null: none.
    answer: str | None = None
    # Column of the better answer: a text, messages that end with it, or an image.
    chosen: str | None = None
    rejected: str | None = None  # column of the worse answer of a preference, like `chosen`
    picture: str | None = None  # column of the image to imitate; null: none
    images: str | None = None  # column of the images that the question shows, one or a list
    answer_pattern: str | None = None  # pattern whose last match has the answer in its first group

    @property
    def by_field(self) -> dict[str, str]:
        """Field -> its column."""
        known = fields_of(self).items()
        return {n: x for n, x in known if n != "answer_pattern" and x is not None}

    def __post_init__(self) -> None:
        said = f"data.columns.answer_pattern={self.answer_pattern}"
        try:
            groups = 1 if self.answer_pattern is None else re.compile(self.answer_pattern).groups
        except re.error as error:
            raise ValueError(f"{said} is no regular expression: {error}") from None
        if groups < 1:
            raise ValueError(
                f"{said} has no group; put the answer in parentheses, as in '#### (.+)'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file of a picture, in a folder, a tar file, or a table."""

    name: str
    read: Callable[[], bytes]  # raises ValueError if it cannot be read


def parts_of(column: str, columns: Container[str]) -> list[str]:
    """The column and the part of it that a name means: a.b is the column of that name, if there is
    one, else the part b of the column a."""
    return [column] if column in columns else column.split(".")


def cell(row: Mapping, column: str, *, option: str) -> object:
    """The value of a column or of a part of one; a part of null is null.

    Raises ValueError with `option`, the field that names the column, if the row has no such part.
    """
    within = row
    for part in parts_of(column, row):
        match within:
            case None:
                return None
            case Mapping() if part in within:
                within = within[part]
            case _:
                there = sorted(within) if isinstance(within, Mapping) else f"{within!r:.60}"
                raise ValueError(f"has no {column!r} (data.columns.{option}), only {there}")
    return within


def to_row(row: Mapping, columns: Columns, answers: Decoding) -> dict:
    """A row of a table as a row of `jsonl`, with its pictures. Raises ValueError for a missing
    column or an invalid picture."""
    named = columns.by_field
    read: dict[str, object] = {}
    for name, column in named.items():
        decode = answers if name in ANSWERS else SHOWN
        decode = answers.for_second(read.get("chosen")) if name == "rejected" else decode
        read[name] = show_files(name, cell(row, column, option=name), decode)
    question, last = split_chat(read.pop("prompt"))
    is_named = not named.keys().isdisjoint(("answer", *ANSWERS))
    read["answer"] = _answer(read.get("answer") if is_named else last, columns)
    if "images" in read:
        read["images"] = [] if read["images"] is None else values_of(read["images"])
    for side in {"chosen", "rejected"} & read.keys():
        read[side] = _last_turn(read[side])
    # A column read in part also becomes a field; unnamed files do not.
    used = (*OWN_KEYS, *named.values())
    rest = {key: said for key, said in row.items() if key not in used and not _is_stored(said)}
    return {"messages" if isinstance(question, list) else "prompt": question, **rest, **read}


def split_chat(said: object) -> tuple[object, str | None]:
    """A question, and its answer if it is a chat that ends with one in text. Any other last turn of
    the assistant stays, and is refused with the chat."""
    match said:
        case [*asked, {"role": "assistant", "content": str(answer), **others}] if all(
            isinstance(one, str | None) for one in others.values()
        ):
            return asked, answer
    return said, None


def to_json_row(row: Mapping) -> dict[str, object]:
    """The row with values as a line of JSON has them, so that rewards and the programs of others
    read the same. The answer 5.0 is 5: Arrow stores a column of integers with gaps, or of integers
    and fractions, as floats. Beyond `EXACT` a float has not the digits of a stored integer."""
    read = {key: said if key in OWN_KEYS else to_json(said) for key, said in row.items()}
    match row.get("answer"):
        case float(number) if number.is_integer() and abs(number) <= EXACT:
            read["answer"] = int(number)
        case float() | Decimal() as number:
            read["answer"] = to_json(number)
    return read


def to_json(value: object) -> object:
    """Dates, times and decimals as text (ISO 8601), null for NaN. Pictures and bytes stay."""
    match value:
        case Mapping():
            return {key: to_json(one) for key, one in value.items()}
        case list():
            return [to_json(one) for one in value]
        case date() | time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case timedelta():
            return str(value)
        case float() if math.isnan(value):
            return None
    return value


def with_own_pictures(prompt: Prompt, resize: Resize) -> Prompt:
    """The prompt with the pictures in its row. Raises ValueError for a file name: a table cannot
    refer to files outside it."""
    shown = prompt.fields.get(KEY, [])
    if not isinstance(shown, list) or not all(isinstance(one, Picture) for one in shown):
        raise ValueError(f"`{KEY}` has no pictures; name another column, data.columns.{KEY}")
    answered = ANSWER in prompt.fields or isinstance(prompt.chosen, Picture)
    prompt = with_pictures(prompt, _refuse_name) if answered else prompt
    return with_size(with_images(prompt, Path()), resize)


def _refuse_name(name: str, beside: Picture | None = None) -> Picture:
    raise ValueError("is text, but a picture is expected")


def _is_stored(said: object) -> bool:
    match said:
        case Stored() | [Stored(), *_]:
            return True
    return False


def show_files(name: str, said: object, decode: Decoding) -> object:
    """Stored files as pictures, one or several; other values unchanged."""
    match said:
        case list():
            return [show_files(name, one, decode) for one in said]
        case Stored(name=file, read=read):
            try:
                return show_stored(read, decode)
            except ValueError as problem:
                raise ValueError(f"`{name}`: {file} {problem}") from None
    return said


def show_fields(row: Mapping, columns: Columns) -> dict[str, object]:
    """The row, with pictures in place of the files that `columns` does not name. Raises ValueError
    for a damaged one."""
    named = columns.by_field.values()
    return {name: x if name in named else show_files(name, x, SHOWN) for name, x in row.items()}


def _last_turn(answer: object) -> object:
    """The last turn of a conversation, which repeats the question before it."""
    match answer:
        case [*_, {"role": "assistant", **last}]:
            return last.get("content")
        case list():
            raise ValueError(
                "a chosen or rejected conversation does not end with the assistant's turn"
            )
    return answer


def _answer(answer: object, columns: Columns) -> object:
    if columns.answer_pattern is None or not isinstance(answer, str):
        return answer
    found = [match[1] for match in re.finditer(columns.answer_pattern, answer)]
    found = [text for text in found if text is not None]  # an optional group may match nothing
    if not found:
        raise ValueError(f"the answer does not match {columns.answer_pattern!r}")
    return found[-1].strip()
