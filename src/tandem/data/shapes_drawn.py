"""Pictures of the toy world: one coloured shape on a dark ground, 16 x 16 pixels.

A picture is uint8 [H, W, 3]; numbers in [-1, 1] stand for 0 to 255.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 16  # pixels along each side
FINE = 4  # points along each side of a pixel: the share inside a shape gives soft edges
RADII = (4.2, 5.6)  # pixels
PLACES = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))  # offsets of the centre, in pixels
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
    """A square with the area of the circle: [..., N, N] bool."""
    return torch.maximum(y.abs(), x.abs()) <= torch.pi**0.5 / 2 * radius


def triangle(y: Tensor, x: Tensor, radius: float) -> Tensor:
    """A triangle as wide and high as the circle, tip up; y grows downwards: [..., N, N] bool."""
    return (x.abs() <= (y + radius) / 2) & (y <= radius)


Shape = Callable[[Tensor, Tensor, float], Tensor]  # the points [N, N] that lie inside
SHAPES: dict[str, Shape] = {"circle": circle, "square": square, "triangle": triangle}


def renderings() -> dict[str, Tensor]:
    """All pictures of each prompt: "red circle" -> [18, 16, 16, 3], two radii at nine places."""
    covered = {name: coverage(shape) for name, shape in SHAPES.items()}
    return {
        f"{colour} {shape}": paint(covered[shape], torch.tensor(rgb))
        for colour, rgb in COLOURS.items()
        for shape in SHAPES
    }


def palette() -> dict[str, tuple[int, ...]]:
    """Every colour of the pictures by name, from 0 to 255; the ground is black."""
    named = {**COLOURS, "black": GROUND}
    return {name: tuple(to_bytes(torch.tensor(rgb)).tolist()) for name, rgb in named.items()}


def coverage(shape: Shape) -> Tensor:
    """The share of each pixel inside the shape: [18, 16, 16] in [0, 1]."""
    along = (torch.arange(SIZE * FINE) + 0.5) / FINE - SIZE / 2  # from the middle, in pixels
    inside = [
        shape(along[:, None] - y, along[None, :] - x, radius) for radius in RADII for y, x in PLACES
    ]
    return torch.nn.functional.avg_pool2d(torch.stack(inside).float(), FINE)


def paint(covered: Tensor, colour: Tensor) -> Tensor:
    """[N, H, W] and [3] -> [N, H, W, 3]"""
    return to_bytes(torch.lerp(torch.tensor(GROUND), colour, covered[..., None]))


def to_bytes(values: Tensor) -> Tensor:
    """[-1, 1] -> uint8; values outside are clamped."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
