"""Decoding of stored pictures: accepted files, colours and sizes."""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from torch import Tensor

from tandem.types import Picture

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]  # height and width, in pixels
# Formats that Pillow reads without starting a program, as it does for PostScript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MOST_PIXELS = 1 << 26  # of one picture: 8192 x 8192
MOST_BYTES = 1 << 28  # of one file
EXACT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")  # modes that convert to RGB without loss
DEEP = "I;16"  # prefix of 16-bit modes


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The conversion of a file to pixels, uint8 [H, W, 3], rotated by its EXIF orientation.

    `exact`: colours outside RGB and transparency are refused; otherwise colours are converted and
    transparency is dropped. `sizes`: the centre is cropped and resized to the size nearest in
    shape; none: unchanged.
    """

    exact: bool = False
    sizes: tuple[Size, ...] = ()

    def __call__(self, content: bytes) -> Tensor:
        """Raises ValueError for a file that is not a picture, is truncated or is too large."""
        picture = _open(content)
        if self.exact:
            _refuse_colours(picture)
        picture = as_rgb(picture)
        if self.sizes:
            picture = _cut(picture, nearest_size(picture.height, picture.width, self.sizes))
        return as_pixels(picture)

    def for_second(self, other: object) -> Decoding:
        """The decoding for the second of a pair, cropped like the first if that is a picture."""
        if not self.sizes or not isinstance(other, Picture):
            return self
        return replace(self, sizes=((other.height, other.width),))


SHOWN = Decoding()


def nearest_size(height: int, width: int, sizes: Sequence[Size]) -> Size:
    """The size nearest in aspect ratio; the first on ties."""
    return min(sizes, key=lambda size: abs(math.log(size[0] * width / (size[1] * height))))


def middle(height: int, width: int, shape: Size) -> tuple[int, int, int, int]:
    """The largest central crop of that shape: top, left, height, width."""
    high = max(1, min(height, width * shape[0] // shape[1]))
    wide = max(1, min(width, height * shape[1] // shape[0]))
    return (height - high) // 2, (width - wide) // 2, high, wide


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises ValueError if it is missing, unreadable or too large."""
    with open_file(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"cannot be read: it is larger than {MOST_BYTES} bytes")
    return content


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Raises ValueError for a file that does not exist or cannot be read."""
    try:
        with open_regular(path) as file:
            yield file
    except FileNotFoundError:
        raise ValueError("is not there") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error}") from None


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Raises OSError, also for anything but a regular file: a pipe may block forever."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        yield file


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without blocking, so that a pipe without a writer opens too."""
    return os.open(path, flags | os.O_NONBLOCK)


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


def _open(content: bytes) -> Image.Image:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            if file.width * file.height > MOST_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels are over {MOST_PIXELS}")
            file.load()
            return _turn(file)
    except Image.UnidentifiedImageError:
        raise ValueError("is no picture") from None
    # The exceptions of PIL for damaged files depend on the format; struct.error is one of them.
    except Exception as error:
        raise ValueError(f"cannot be read: {error}") from None


def _turn(picture: Image.Image) -> Image.Image:
    """A copy of the picture, rotated by its EXIF orientation."""
    from PIL import ExifTags, Image

    # Not by ImageOps.exif_transpose, which writes the other EXIF tags again: it raises for one
    # whose type does not fit its value, though the picture can be seen.
    turn = Image.Transpose
    turns = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }
    way = turns.get(picture.getexif().get(ExifTags.Base.Orientation))
    return picture.copy() if way is None else picture.transpose(way)


def _refuse_colours(picture: Image.Image) -> None:
    if picture.mode not in EXACT and not picture.mode.startswith(DEEP):
        raise ValueError(f"has colours of mode {picture.mode}, not RGB")
    if not picture.has_transparency_data:
        return
    if picture.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        raise ValueError("has transparent pixels; put it on an opaque background")


def as_rgb(picture: Image.Image) -> Image.Image:
    """The picture in RGB. Raises ValueError for a mode without a known largest value."""
    import numpy as np
    from PIL import Image

    if picture.mode in ("I", "F"):
        raise ValueError(f"has pixels of mode {picture.mode}, whose white level is unknown")
    if picture.mode.startswith(DEEP):
        eight = (np.array(picture).astype(np.uint32) + 128) // 257
        picture = Image.fromarray(eight.astype(np.uint8))
    return picture.convert("RGB")


def _cut(picture: Image.Image, size: Size) -> Image.Image:
    from PIL import Image

    top, left, high, wide = middle(picture.height, picture.width, size)
    # Not by ImageOps.fit, which blends in pixels outside the crop.
    part = picture.crop((left, top, left + wide, top + high))
    return part.resize((size[1], size[0]), Image.Resampling.LANCZOS)
