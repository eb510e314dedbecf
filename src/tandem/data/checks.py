"""Checks of one row of a data file: from bytes to a prompt, or a ValueError with the reason."""

from __future__ import annotations

import json
import math

from tandem.data.records import prompt_id
from tandem.types import Picture, Prompt

LONGEST_ROW = 1 << 22  # bytes
ROLES = ("system", "user", "assistant", "tool")
SAID = ("role", "content")  # the required keys of a message
OWN_KEYS = ("prompt", "messages", "answer", "chosen", "rejected", "id", "source")


def parse(line: bytes) -> dict:
    """The JSON object in a line of bytes.

    Raises ValueError with the reason for any other line.
    """
    if len(line.rstrip(b"\r\n")) > LONGEST_ROW:
        raise ValueError(f"longer than {LONGEST_ROW} bytes")
    try:
        row = json.loads(
            line.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_object
        )
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError("not valid unicode") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, not {_kind(row)}")
    return row


def to_prompt(row: dict, *, source: str, content: int) -> Prompt:
    """A checked row as a prompt; `content` is its id if the row has none.

    Raises ValueError for an invalid row.
    """
    text, messages = row.get("prompt"), row.get("messages")
    if text is None and messages is None:
        there = ", ".join(list(map(str, row))[:8]) or "nothing"
        raise ValueError(f"no prompt: name a field `prompt` or `messages`; there is {there}")
    if text is not None and messages is not None:
        raise ValueError("both `prompt` and `messages`: give one of them")
    if text is not None:
        _check_text(text, "`prompt`")
    named = row.get("source", source)
    _check_text(named, "`source`")
    chosen, rejected = _pair(row.get("chosen"), row.get("rejected"))
    return Prompt(
        id=_id(row["id"]) if "id" in row else content,
        source=named,
        text=text,
        messages=None if messages is None else _messages(messages),
        answer=_answer(row.get("answer")),
        chosen=chosen,
        rejected=rejected,
        size=_size(row.get("height"), row.get("width")),
        fields={key: value for key, value in row.items() if key not in OWN_KEYS},
    )


def _object(pairs: list[tuple[str, object]]) -> dict:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key is given twice")
    return row


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a valid JSON number")
    return value


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {_kind(value)}")
    if not value.strip():
        raise ValueError(f"{name} is empty")


def _messages(messages: object) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list of at least one message")
    read = tuple(_message(message, number) for number, message in enumerate(messages, start=1))
    if read[-1]["role"] == "assistant":
        raise ValueError("`messages` must not end with the assistant's turn: give it as `answer`")
    return read


def _message(message: object, number: int) -> dict[str, str]:
    """A message without its optional keys that are null, as Arrow gives every message all keys."""
    if not isinstance(message, dict) or not {*SAID} <= message.keys():
        raise ValueError(f"message {number} must be an object with `role` and `content`")
    if message["role"] not in ROLES:
        raise ValueError(f"message {number}: role {message['role']!r} is not one of {ROLES}")
    read = {key: value for key, value in message.items() if value is not None or key in SAID}
    for key, value in read.items():
        if not isinstance(value, str):
            raise ValueError(f"message {number}: `{key}` must be text, not {_kind(value)}")
    return read


def _answer(answer: object) -> str | None:
    match answer:
        case None | str():
            return answer
        case int() | float() if type(answer) is not bool:
            return str(answer)
    raise ValueError(f"`answer` must be text or a number, not {_kind(answer)}")


def _pair(chosen: object, rejected: object) -> tuple[str, str] | tuple[None, None]:
    """Two different answers, or no pair."""
    if chosen is None and rejected is None:
        return None, None
    for name, value in (("chosen", chosen), ("rejected", rejected)):
        if value is None:
            raise ValueError(f"`{name}` is missing: a pair has a chosen and a rejected answer")
        if not isinstance(value, Picture):
            _check_text(value, f"`{name}`")
    if chosen == rejected:
        raise ValueError("`chosen` and `rejected` are equal: nothing is preferred")
    return chosen, rejected


def _size(height: object, width: object) -> tuple[int, int] | None:
    """The size of a picture if a row gives one; text models ignore it, so it is never a fault."""
    read = [_whole(height), _whole(width)]
    return tuple(read) if all(type(x) is int and x > 0 for x in read) else None


def _whole(value: object) -> object:
    """A whole number as an integer; any other value unchanged."""
    match value:
        case float() if value.is_integer():  # of a column with gaps
            return int(value)
        case str() if (digits := value.removesuffix(".0")).isdecimal():  # of a table of text
            return int(digits)
    return value


def _id(given: object) -> int:
    match given:
        case str():
            return prompt_id("id", given)
        case int() if type(given) is not bool and 0 <= given < 1 << 63:
            return given
    raise ValueError("`id` must be text or an integer from 0 up to 2**63")


def _kind(value: object) -> str:
    kinds = {
        dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null",
        int: "a number", float: "a number",
    }  # fmt: skip
    return kinds.get(type(value), type(value).__name__)
