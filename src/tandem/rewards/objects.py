"""Objects that a detector found in a picture: selection, overlap and directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SIDES = ("left of", "right of", "above", "below")
GREY = 0x99


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One object: its score and its position."""

    score: float  # 0 to 1
    box: tuple[float, float, float, float]  # left, top, right, bottom, in pixels
    mask: Tensor | None = None  # [H, W] bool; None: the detector gives only boxes
    colour: str | None = None  # None: not requested

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @property
    def size(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return abs(right - left), abs(bottom - top)


def select(
    found: Sequence[Found], *, least: float, most: int, max_overlap: float = 1.0
) -> list[Found]:
    """Objects with a score above `least`, at most `most` of them, by falling score.

    Those that overlap a better one by `max_overlap` or more are dropped; 1 drops none.
    """
    good = sorted((one for one in found if one.score > least), key=lambda one: -one.score)[:most]
    kept: list[Found] = []
    for one in good:
        if max_overlap >= 1 or all(overlap(one, other) < max_overlap for other in kept):
            kept.append(one)
    return kept


def overlap(first: Found, second: Found) -> float:
    """Intersection over union of two boxes with inclusive ends, as in GenEval."""
    (a, b, c, d), (e, f, g, h) = first.box, second.box
    shared = area((max(a, e), max(b, f), min(c, g), min(d, h)))
    return shared / (area(first.box) + area(second.box) - shared)


def area(box: tuple[float, float, float, float]) -> float:
    """Pixels of a box with inclusive ends."""
    left, top, right, bottom = box
    return max(right - left + 1, 0) * max(bottom - top + 1, 0)


def direction(one: Found, other: Found, *, slack: float) -> set[str]:
    """The directions of `one` from `other`: left of, right of, above, below; possibly two.

    The offset of the centres, minus `slack` of both sizes along each axis, over its full length; a
    direction counts above 1/2. Source: GenEval, arXiv:2310.11513 (relative_position).
    """
    offset = [a - b for a, b in zip(one.centre, other.centre, strict=True)]
    sizes = [a + b for a, b in zip(one.size, other.size, strict=True)]
    apart = [
        math.copysign(max(abs(way) - slack * size, 0), way)
        for way, size in zip(offset, sizes, strict=True)
    ]
    if all(abs(way) < 1e-3 for way in apart):
        return set()
    x, y = (way / math.hypot(*offset) for way in apart)
    beyond = (x < -0.5, x > 0.5, y < -0.5, y > 0.5)
    return {side for side, holds in zip(SIDES, beyond, strict=True) if holds}


def cut_out(picture: Tensor, found: Found) -> Tensor:
    """The part of a picture in the box of an object, [h, w, 3]; pixels outside its mask are grey.

    picture: uint8 [H, W, 3].
    """
    if found.mask is not None:
        picture = torch.where(found.mask[..., None], picture, torch.full_like(picture, GREY))
    left, top, right, bottom = (round(side) for side in found.box)
    left, top = (max(0, min(a, n - 1)) for a, n in ((left, picture.shape[1]), (top, len(picture))))
    return picture[top : max(bottom, top + 1), left : max(right, left + 1)]
