"""Serialisation between a run and a reward server: JSON for texts, safetensors for pictures.

Of a prompt only the fields that a reward may read (`OF_PROMPT`) are sent, without their files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tandem.data.images import fields_without_files
from tandem.rewards.result import Missing
from tandem.types import Prompt

VERSION = 1
TEXTS, PICTURES = "application/json", "application/x-safetensors"
METADATA = "request"  # the key of a safetensors header that holds the JSON
OF_PROMPT = ("id", "source", "text", "messages", "answer", "fields", "episode")
LONGEST_REASON = 200  # characters

Number = float | None | Exception  # None: not scored; an exception: why there is no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample in a request. Its id follows from its position and content, so that answers to other
    requests cannot be confused with its own."""

    id: str
    output: str | Tensor  # a picture is uint8 [H, W, 3]
    prompt: Prompt


def row_of(place: int, output: str | Tensor, prompt: Prompt) -> Row:
    """The row. Raises ValueError or TypeError for other values. A picture is uint8 [H, W, 3]."""
    if isinstance(output, Tensor):
        output = output.cpu().contiguous().clone()  # safetensors rejects views of one tensor
        content = output.numpy().tobytes()
    else:
        content = json.dumps(output).encode()
    said = json.dumps(_of_prompt(prompt), allow_nan=False).encode()
    digest = hashlib.blake2b(said + content, digest_size=8).hexdigest()
    return Row(id=f"{place}-{digest}", output=output, prompt=prompt)


def encode(rows: Sequence[Row]) -> tuple[str, bytes]:
    """Media type and body of a request; all outputs are texts, or all are pictures."""
    samples = [{"id": row.id, "prompt": _of_prompt(row.prompt)} for row in rows]
    request = {"version": VERSION, "samples": samples}
    if not isinstance(rows[0].output, Tensor):
        for sample, row in zip(samples, rows, strict=True):
            sample["output"] = row.output
        return TEXTS, json.dumps(request, allow_nan=False).encode()
    pictures = {row.id: row.output for row in rows}
    return PICTURES, safetensors.torch.save(pictures, {METADATA: json.dumps(request)})


def decode(kind: str, body: bytes) -> list[Row]:
    """The rows of a request. Raises ValueError, in one line, for an invalid body."""
    pictures = _pictures(body) if kind == PICTURES else None
    request = _json(body if pictures is None else _header(body))
    match request:
        case {"version": version, "samples": [_, *_] as samples} if version == VERSION:
            rows = [_row(sample, pictures) for sample in samples]
        case {"version": version} if version == VERSION:
            raise ValueError("samples must be a non-empty list")
        case _:
            raise ValueError(f"expected an object with version {VERSION} and samples")
    ids = [row.id for row in rows]
    if len(set(ids)) < len(ids):
        raise ValueError("two samples share an id")
    if pictures is not None and set(ids) != pictures.keys():
        raise ValueError("tensors and samples must have the same ids")
    return rows


def encode_numbers(ids: Sequence[str], numbers: Sequence[Number]) -> bytes:
    """The body of an answer: an id and a number, or a reason, for each row."""
    scores = [
        {"id": id, "score": None, "reason": str(number)[:LONGEST_REASON]}
        if isinstance(number, Exception)
        else {"id": id, "score": number}
        for id, number in zip(ids, numbers, strict=True)
    ]
    return json.dumps({"version": VERSION, "scores": scores}, allow_nan=False).encode()


def decode_numbers(reply: object, ids: Sequence[str]) -> list[Number]:
    """The number of each id, in order; an invalid one does not affect others.

    Raises ValueError for a reply without any of them.
    """
    said: dict[str, list[dict[str, Any]]] = {id: [] for id in ids}
    match reply:
        case {"scores": [*scores]}:
            for score in scores:
                match score:
                    case {"id": str(id)} if id in said:
                        said[id].append(score)
        case _:
            raise ValueError("the reply has no list of scores")
    if not any(said.values()):
        raise ValueError(f"the reply has none of the {len(ids)} ids")
    return [_number(said[id]) for id in ids]


def _number(said: Sequence[Mapping[str, Any]]) -> Number:
    if len(said) != 1:
        return Missing(
            "the reply has no score for it" if not said else "the reply has two scores for it"
        )
    match score := said[0].get("score"):
        case None:
            reason = said[0].get("reason")
            return None if reason is None else Missing(_one_line(reason))
        case int() | float() if type(score) is not bool:
            return score
    return Missing(f"gave {type(score).__name__}, not a number")


def _one_line(reason: object) -> str:
    shown = "".join(c if c.isprintable() else " " for c in str(reason)[:LONGEST_REASON])
    return f"the server says: {shown}"


def _of_prompt(prompt: Prompt) -> dict[str, Any]:
    messages = None if prompt.messages is None else [dict(one) for one in prompt.messages]
    return {
        "id": prompt.id,
        "source": prompt.source,
        "text": prompt.text,
        "messages": messages,
        "answer": prompt.answer,
        "fields": fields_without_files(prompt),
        **({} if prompt.episode is None else {"episode": dict(prompt.episode)}),
    }


def _row(sample: object, pictures: Mapping[str, Tensor] | None) -> Row:
    expected = {"id", "prompt"} | ({"output"} if pictures is None else set())
    if not isinstance(sample, dict) or sample.keys() != expected:
        raise ValueError(f"a sample must have exactly {', '.join(sorted(expected))}")
    id = sample["id"]
    output = sample["output"] if pictures is None else pictures.get(str(id))
    if not isinstance(id, str) or not isinstance(output, str | Tensor):
        raise ValueError("each id must be a string that names a text or a tensor")
    return Row(id=id, output=output, prompt=_prompt(sample["prompt"]))


def _prompt(said: object) -> Prompt:
    if not isinstance(said, dict) or not said.keys() <= set(OF_PROMPT):
        raise ValueError(f"a prompt must have exactly {', '.join(OF_PROMPT)}")
    messages, fields, episode = (said.get(n) for n in ("messages", "fields", "episode"))
    fields = {} if "fields" not in said else fields
    texts = [said.get("source", ""), said.get("text") or "", said.get("answer") or ""]
    fits = (
        type(said.get("id")) is int
        and isinstance(fields, dict)
        and isinstance(episode, dict | None)
    )
    if not fits or not all(isinstance(text, str) for text in texts) or not _is_chat(messages):
        raise ValueError(
            "a prompt must have id: int, source, text and answer: string, fields: object"
        )
    return Prompt(
        id=said["id"],
        source=texts[0],
        text=said.get("text"),
        messages=None if messages is None else tuple(messages),
        answer=said.get("answer"),
        fields=fields,
        episode=episode,
    )


def _is_chat(messages: object) -> bool:
    match messages:
        case None:
            return True
        case [*each]:
            return all(map(_is_message, each))
    return False


def _is_message(one: object) -> bool:
    return isinstance(one, dict) and all(isinstance(text, str) for text in one.values())


def _pictures(body: bytes) -> dict[str, Tensor]:
    try:
        pictures = safetensors.torch.load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError("the body is not a safetensors file") from error
    for picture in pictures.values():
        if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise ValueError(f"a picture must be uint8 [H, W, 3], not {[*picture.shape]}")
    return pictures


def _header(body: bytes) -> str:
    """The JSON of a request in the header of a safetensors file."""
    header = _json(body[8 : 8 + int.from_bytes(body[:8], "little")])
    metadata = header.get("__metadata__") or {}
    if METADATA not in metadata:
        raise ValueError(f"the header of the safetensors file has no {METADATA}")
    return metadata[METADATA]


def _json(body: bytes | str) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
