"""The pictures of the embedded world: one coloured shape on a dark ground, 16 x 16 pixels.

A picture is uint8 [H, W, 3]; numbers in [-1, 1] stand for 0 to 255.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 16  # pixels along each side
FINE = 4  # points along each side of a pixel: the share that lies inside a shape softens its edge
RADII = (4.2, 5.6)  # pixels
PLACES = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))  # of the centre, in pixels
GROUND = (-0.9, -0.9, -0.9)
COLOURS = {
    "red": (0.9, -0.9, -0.9),
    "green": (-0.9, 0.9, -0.9),
    "blue": (-0.9, -0.9, 0.9),
    "yellow": (0.9, 0.9, -0.9),
}


def circle(y: Tensor, x: Tensor, radius: float) -> Tensor:
    """y^2 + x^2 <= radius^2: [..., N, N] bool."""
    return y**2 + x**2 <= radius**2


def square(y: Tensor, x: Tensor, radius: float) -> Tensor:
    """Of the area of the circle: [..., N, N] bool."""
    return torch.maximum(y.abs(), x.abs()) <= torch.pi**0.5 / 2 * radius


def triangle(y: Tensor, x: Tensor, radius: float) -> Tensor:
    """As wide and as high as the circle, the tip above; y grows downwards: [..., N, N] bool."""
    return (x.abs() <= (y + radius) / 2) & (y <= radius)


Shape = Callable[[Tensor, Tensor, float], Tensor]  # which of the points [N, N] lie inside
SHAPES: dict[str, Shape] = {"circle": circle, "square": square, "triangle": triangle}


def renderings() -> dict[str, Tensor]:
    """Every picture of every prompt: "red circle" -> [18, 16, 16, 3], two radii at nine places."""
    covered = {name: coverage(shape) for name, shape in SHAPES.items()}
    return {
        f"{colour} {shape}": paint(covered[shape], torch.tensor(rgb))
        for colour, rgb in COLOURS.items()
        for shape in SHAPES
    }


def palette() -> dict[str, tuple[int, ...]]:
    """Every colour that a picture has by its name, from 0 to 255; the ground is black."""
    named = {**COLOURS, "black": GROUND}
    return {name: tuple(to_bytes(torch.tensor(rgb)).tolist()) for name, rgb in named.items()}


def coverage(shape: Shape) -> Tensor:
    """The share of each pixel that lies inside: [18, 16, 16] in [0, 1]."""
    along = (torch.arange(SIZE * FINE) + 0.5) / FINE - SIZE / 2  # from the middle, in pixels
    inside = [
        shape(along[:, None] - y, along[None, :] - x, radius) for radius in RADII for y, x in PLACES
    ]
    return torch.nn.functional.avg_pool2d(torch.stack(inside).float(), FINE)


def paint(covered: Tensor, colour: Tensor) -> Tensor:
    """[N, H, W] and [3] -> [N, H, W, 3]"""
    return to_bytes(torch.lerp(torch.tensor(GROUND), colour, covered[..., None]))


def to_bytes(values: Tensor) -> Tensor:
    """[-1, 1] -> uint8; what lies outside becomes the nearer end."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
