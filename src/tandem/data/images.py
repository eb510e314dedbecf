"""Pictures in prompts: named by their content, stored beside a file, one for each marker."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from tandem.data.decoding import SHOWN, Decoding, as_pixels, as_rgb, read_file
from tandem.types import IMAGE, Picture, Prompt

KEY = "images"  # of a row that shows some


def show(pixels: Tensor) -> Picture:
    """A picture or film from pixels, uint8 [H, W, 3] or [F, H, W, 3]."""
    *frames, height, width, _ = pixels.shape
    content = hashlib.sha256(pixels.contiguous().numpy().tobytes())
    content.update(" ".join(map(str, (*frames, height, width))).encode())
    return Picture(
        name=content.hexdigest(),
        height=height,
        width=width,
        frames=frames[0] if frames else None,
        load=lambda: pixels,
    )


def as_picture(value: object) -> Picture | None:
    """A picture, also one of PIL; None: the value is none. Raises ValueError for a mode without a
    known largest value."""
    if isinstance(value, Picture):
        return value
    return show(as_pixels(as_rgb(value))) if _is_pil(value) else None


def show_stored(read: Callable[[], bytes], decode: Decoding = SHOWN) -> Picture:
    """A picture whose file `read` returns, now and on every later access.

    It is decoded completely, since a header may be wrong. Raises ValueError for an invalid or
    truncated file.
    """
    content = read()
    height, width, _ = decode(content).shape
    name = hashlib.sha256(content)
    file = name.hexdigest()
    if decode.sizes:
        name.update(f"{height} {width}".encode())
    return Picture(
        name=name.hexdigest(),
        height=height,
        width=width,
        file=file,
        load=lambda: decode(read()),
    )


def show_file(path: Path, decode: Decoding = SHOWN) -> Picture:
    """A picture in a file. Raises ValueError like `show_stored`."""
    return show_stored(partial(read_file, path.absolute()), decode)


def with_images(prompt: Prompt, folder: Path) -> Prompt:
    """The prompt with the pictures that its row names or holds, one for each mark `<image>`.

    Names start at `folder`. Without a mark they stand before the first question. Raises ValueError
    for as many marks as there are no pictures.
    """
    if KEY not in prompt.fields:
        return prompt
    names = prompt.fields[KEY]
    if not isinstance(names, list) or not all(
        isinstance(n, Picture) or (isinstance(n, str) and n.strip()) for n in names
    ):
        raise ValueError(f"`{KEY}` must be a list of file names, not {names!r}")
    images = tuple(n if isinstance(n, Picture) else _find(n, folder) for n in names)
    fields = {name: value for name, value in prompt.fields.items() if name != KEY}
    return add_marks(replace(prompt, images=images, fields=fields))


def find_unseen(prompt: Prompt) -> list[str]:
    """The fields of a prompt with pictures, which no model would see there."""
    return [name for name, value in prompt.fields.items() if name == KEY or holds_pictures(value)]


def fields_without_files(prompt: Prompt) -> dict[str, object]:
    """The fields of a prompt that can be sent as JSON: those without pictures and bytes."""
    return {name: value for name, value in prompt.fields.items() if not _holds_file(value)}


def _holds_file(value: object) -> bool:
    match value:
        case bytes():
            return True
        case Mapping():
            return any(map(_holds_file, value.values()))
        case list() | tuple():
            return any(map(_holds_file, value))
    return holds_pictures(value)


def holds_pictures(value: object) -> bool:
    """Whether a field of a row is a picture, or a list of them."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Picture) or _is_pil(first)


def _is_pil(value: object) -> bool:
    library = sys.modules.get("PIL.Image")  # who has a picture of it has imported it
    return library is not None and isinstance(value, library.Image)


def _find(name: str, folder: Path) -> Picture:
    try:
        return show_file(folder / name)
    except ValueError as problem:
        raise ValueError(f"`{KEY}`: {name} {problem}") from None


def add_marks(prompt: Prompt) -> Prompt:
    """The prompt with a mark for each of its pictures.

    Raises ValueError where their numbers differ.
    """
    marks, images = count_marks(prompt), len(prompt.images)
    if marks == images:
        return prompt
    if marks:
        raise ValueError(
            f"{marks} markers {IMAGE} for {images} pictures: give one for each, or none"
        )
    before = IMAGE * images
    if prompt.text is not None:
        return replace(prompt, text=before + prompt.text)
    first = next((i for i, turn in enumerate(prompt.messages) if turn["role"] == "user"), 0)
    return replace(prompt, messages=_put_marks_before(prompt.messages, first, before))


def count_marks(prompt: Prompt) -> int:
    """The number of picture marks in a prompt."""
    texts = [prompt.text] if prompt.messages is None else [t["content"] for t in prompt.messages]
    return sum(text.count(IMAGE) for text in texts)


def _put_marks_before(messages: Sequence, place: int, marks: str) -> tuple:
    turn = messages[place]
    return (*messages[:place], {**turn, "content": marks + turn["content"]}, *messages[place + 1 :])
