"""Samples of a flow policy as one picture: a grid of an evaluation, a strip through training.

A picture is uint8 [H, W, 3].
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tandem.record import durable
from tandem.record.fonts import boxes_for_missing_letters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 1  # pixels of paper around each picture, before small ones are enlarged
PAPER = 255
VISIBLE = 96  # fewest screen pixels along the shorter side of a picture
ENOUGH = 192  # about the most of them, where many are shown side by side
INK = "#1f2933"


def lay_out_grid(pictures: Sequence[Tensor], columns: int) -> Tensor:
    """A grid of pictures, row by row, in tiles of the largest height and width, with paper between
    and in empty tiles: [H, W, 3].

    `cut_tile` recovers pictures of one size. Raises ValueError without pictures or columns.
    """
    if not pictures or columns < 1:
        raise ValueError(f"a grid needs a picture and a column, not {len(pictures)} in {columns}")
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    rows = math.ceil(len(pictures) / columns)
    size = (rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3)
    sheet = torch.full(size, PAPER, dtype=torch.uint8)
    for (top, left), picture in zip(_find_corners(sheet, (height, width)), pictures, strict=False):
        sheet[top : top + len(picture), left : left + picture.shape[1]] = picture.cpu()
    return sheet


def cut_tile(sheet: Tensor, size: Sequence[int], place: int) -> Tensor:
    """One tile of a grid of tiles of that height and width, counted row by row: [H, W, 3] -> [h, w,
    3]. Raises ValueError for a tile that the grid does not have."""
    if [*map(type, (*size, place))] == [int] * 3 and min(size) > 0 and place >= 0:
        (height, width), (high, wide) = size, sheet.shape[:2]
        row, column = divmod(place, max(1, (wide - GAP) // (width + GAP)))
        top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
        if top + height <= high and left + width <= wide:
            return sheet[top : top + height, left : left + width]
    raise ValueError(f"there is no tile {place} of size {size}")


def draw_strip(
    frames: Mapping[int, Sequence[Tensor]], *, most: int = 10
) -> tuple[list[int], Tensor]:
    """The same samples at several iterations: a row per sample, a column per iteration.

    Of more than `most` iterations the first, the last and evenly spaced ones between are shown.
    Also returns the shown iterations. `frames`: iteration -> pictures [H, W, 3].
    """
    known = sorted(frames)
    places = np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int)
    shown = [known[place] for place in places]
    rows = zip(*(frames[iteration] for iteration in shown), strict=True)
    return shown, lay_out_grid([picture for row in rows for picture in row], len(shown))


def enlarge(picture: Tensor, times: int) -> Tensor:
    """Every pixel repeated as a block: [H, W, 3] -> [times H, times W, 3]"""
    return picture.repeat_interleave(times, 0).repeat_interleave(times, 1)


def enlarge_to_screen(picture: Tensor) -> Tensor:
    """The picture enlarged to be visible on a screen: [H, W, 3] -> [n H, n W, 3]."""
    return enlarge(picture, count_enlargement(picture.shape))


def count_enlargement(size: Sequence[int]) -> int:
    """The factor by which pictures of that height and width are enlarged for a screen."""
    return math.ceil(VISIBLE / min(size[:2]))


def shrink(picture: Tensor) -> Tensor:
    """The picture reduced by block means, to be shown among many: [H, W, 3] -> [h, w, 3]."""
    times = max(1, min(picture.shape[:2]) // ENOUGH)
    pixels = picture.cpu().permute(2, 0, 1)[None].float()
    means = torch.nn.functional.avg_pool2d(pixels, times)
    return picture.cpu() if times == 1 else means[0].permute(1, 2, 0).round().to(torch.uint8)


def save(picture: Tensor, path: Path) -> Path:
    """Write the exact pixels as a PNG, whole or absent. `picture`: uint8 [H, W, 3]."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.cpu().numpy()).save(file, format="PNG")
    durable.replace(path, file.getvalue())
    return path


def load(path: Path) -> Tensor:
    """The pixels that `save` wrote: [H, W, 3]. Raises ValueError for more than fit in memory."""
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path.name}: {error}") from error


def save_titled(
    sheet: Tensor,
    path: Path,
    *,
    size: tuple[int, int],
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    captions: Sequence[str] = (),
) -> Path:
    """A grid of pictures of that height and width for viewing: small ones enlarged, a title above
    each column and at the left of each row, and a caption at the foot of each picture.

    `sheet`: uint8 [H, W, 3].
    """
    from matplotlib.figure import Figure

    times = count_enlargement(size)
    shown = enlarge(sheet, times)
    high, wide = (length / 100 for length in shown.shape[:2])
    figure = Figure(figsize=(wide, high), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(shown.numpy(), interpolation="nearest", aspect="auto")
    height, width = (times * (length + GAP) for length in size)
    plain = {"parse_math": False}  # a prompt may hold $: matplotlib raises for a wrong formula
    axes.set_xticks(_middles(columns, width), [_shorten(t, width) for t in columns], **plain)
    axes.set_yticks(_middles(rows, height), [_shorten(t, 3 * width) for t in rows], **plain)
    across = shown.shape[1] // width
    for place, caption in enumerate(captions):
        foot = ((place % across + 0.5) * width, (place // across + 1) * height)
        style = {"ha": "center", "va": "bottom", "fontsize": 5, "color": "white"} | plain
        axes.text(
            *foot, _shorten(caption, 3 * width // 2), bbox={"color": INK, "pad": 0.6}, **style
        )
    _hide_axes(axes)
    with boxes_for_missing_letters():
        figure.savefig(path, dpi=100, facecolor="white", bbox_inches="tight", pad_inches=0.06)
    return path


def _find_corners(sheet: Tensor, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Top and left of each tile, row by row."""
    (high, wide), (height, width) = sheet.shape[:2], size
    for top in range(GAP, high - height + 1, height + GAP):
        for left in range(GAP, wide - width + 1, width + GAP):
            yield top, left


def _middles(titles: Sequence[str], length: int) -> list[float]:
    return [(place + 0.5) * length for place in range(len(titles))]


def _shorten(title: str, width: int) -> str:
    """The title in at most three lines of that width in pixels."""
    lines = textwrap.wrap(title, max(6, width // 6), max_lines=3, placeholder=" ...")
    return "\n".join(lines)


def _hide_axes(axes: Axes) -> None:
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8, labelcolor=INK, pad=3)
    axes.spines[:].set_visible(False)
