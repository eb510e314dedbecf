"""Pictures that rows of a file name: found beside it, checked, and cut to size if that is asked."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from torch import Tensor

from tandem.types import Prompt

if TYPE_CHECKING:
    from PIL import Image

KEY = "picture"  # of a row that shows one; pairs name theirs as `chosen` and `rejected`


def make_finisher(
    folder: Path, *, pictures: bool, resize: int | None
) -> Callable[[Prompt], Prompt]:
    """A function that turns a row into a prompt with its pictures; names start at `folder`.

    Without `pictures` a row names none, and one that does is refused.
    """
    if resize is not None and not pictures:
        raise ValueError(f"data.resize={resize} is of pictures; set data.pictures=true")
    if resize is not None and resize < 1:
        raise ValueError(f"data.resize={resize} is a side in pixels: at least 1, or null")
    if not pictures:
        return refuse_named
    load = cache(partial(load_picture, side=resize))  # a picture may stand in many rows
    return lambda prompt: load_named(prompt, lambda name: load(folder / name))


def refuse_named(prompt: Prompt) -> Prompt:
    """The prompt as it is, if it names no picture."""
    if KEY in prompt.fields:
        raise ValueError(f"`{KEY}` names a file; set data.pictures=true")
    return prompt


def load_named(prompt: Prompt, load: Callable[[str], Tensor]) -> Prompt:
    """The prompt with the picture or the pair of pictures that it names.

    `load`: name -> uint8 [H, W, 3]. Raises ValueError for a pair of one picture twice.
    """
    media, chosen, rejected = (
        _load(key, name, load)
        for key, name in (
            (KEY, prompt.fields.get(KEY)),
            ("chosen", prompt.chosen),
            ("rejected", prompt.rejected),
        )
    )
    if chosen is not None and torch.equal(chosen, rejected):
        raise ValueError("`chosen` and `rejected` show the same picture: nothing is preferred")
    return replace(
        prompt,
        media=media,
        chosen=None,
        rejected=None,
        chosen_media=chosen,
        rejected_media=rejected,
        fields={name: value for name, value in prompt.fields.items() if name != KEY},
    )


def _load(key: str, name: object, load: Callable[[str], Tensor]) -> Tensor | None:
    if name is None:
        return None
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"`{key}` must be the name of a file, not {name!r}")
    try:
        return load(name)
    except ValueError as problem:
        raise ValueError(f"`{key}`: {name} {problem}") from None


def load_picture(path: Path, *, side: int | None) -> Tensor:
    """uint8 [H, W, 3], turned as its camera was; `side`: the middle square, at so many pixels.

    A ValueError says what else the file is. It is raised for what is no picture.
    """
    from PIL import Image

    picture = _open(path)
    if picture.mode != "RGB":
        raise ValueError(f"has colours of mode {picture.mode}, not RGB")
    if side is not None:
        # Not by ImageOps.fit, which mixes in what lies beyond the square.
        picture = picture.crop(crop_middle(*picture.size)).resize(
            (side, side), Image.Resampling.LANCZOS
        )
    return as_pixels(picture)


def load_shown(path: Path | BinaryIO) -> Tensor:
    """uint8 [H, W, 3] of a picture in whatever colours; transparent parts show what is under them.

    Raises ValueError for what is no picture.
    """
    return as_pixels(_open(path).convert("RGB"))


def read_file(path: Path) -> bytes:
    """Raises ValueError for a file that is not there or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError("is not there") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error}") from None


def measure(content: bytes) -> tuple[int, int]:
    """Height and width of a picture, which is decoded to its end: a header alone may lie.

    Raises ValueError for what is no picture, or breaks off.
    """
    width, height = _open(io.BytesIO(content)).size
    return height, width


def as_pixels(picture: Image.Image) -> Tensor:
    """uint8 [H, W, 3]"""
    import numpy as np

    return torch.from_numpy(np.array(picture))


def as_png(pixels: Tensor) -> bytes:
    """The file of a picture, uint8 [H, W, 3], without any loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, format="PNG")
    return file.getvalue()


def _open(path: Path | BinaryIO) -> Image.Image:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file)
    except Image.UnidentifiedImageError:
        raise ValueError("is no picture") from None
    except FileNotFoundError:
        raise ValueError("is not there") from None
    # What PIL raises for bytes that break off or lie depends on their format.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    return picture


def crop_middle(width: int, height: int) -> tuple[int, int, int, int]:
    """The largest square in the middle: left, top, right, bottom."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
