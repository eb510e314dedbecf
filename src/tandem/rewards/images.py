"""Rewards of pictures that read nothing but their pixels, and how much pictures differ.

A picture is uint8 [H, W, 3].
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.metrics import Sum
from tandem.types import Prompt


@register_reward(judges="pictures")
def jpeg_compressibility(output: Tensor, prompt: Prompt, *, quality: int = 95) -> float:
    """Minus the size as a JPEG, in kB (1000 bytes): smooth pictures score high.

    Source: DDPO, arXiv:2305.13301.
    """
    return -jpeg_size(output, quality)


@register_reward(judges="pictures")
def jpeg_incompressibility(output: Tensor, prompt: Prompt, *, quality: int = 95) -> float:
    """The size as a JPEG, in kB (1000 bytes): rich pictures score high.

    Source: DDPO, arXiv:2305.13301.
    """
    return jpeg_size(output, quality)


def jpeg_size(picture: Tensor, quality: int) -> float:
    """kB (1000 bytes), headers included."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels(picture).numpy()).save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


@register_reward(judges="pictures")
def colour_share(
    output: Tensor, prompt: Prompt, *, palette: Mapping[str, tuple[int, int, int]]
) -> float | None:
    """Share of the pixels that are nearer to a colour the prompt names than to any other.

    None where it names none. A picture full of that colour scores 1, whatever else was asked for: a
    quick test that something learns, not of what it learns.
    """
    words = re.findall(r"\w+", (prompt.text or "").lower())
    named = torch.tensor([name in words for name in palette])
    if not named.any():
        return None
    colours = torch.tensor(list(palette.values())).float()
    # Minus the squared distance, but for the square of the pixel, which favours no colour.
    near = 2 * pixels(output).float() @ colours.T - colours.square().sum(1)  # [H, W, colours]
    best, other = (near.masked_fill(left_out, -torch.inf).amax(-1) for left_out in (~named, named))
    return (best > other).double().mean().item()


def diversity(outputs: Sequence[Tensor], group: Tensor) -> Sum:
    """How much the samples of one prompt differ: their `spread`, as a mean over prompts.

    group: [B]. A prompt with one sample says nothing.
    """
    groups = [(group == one).nonzero()[:, 0].tolist() for one in group.unique()]
    spreads = [spread([outputs[i] for i in rows]) for rows in groups if len(rows) > 1]
    total = torch.stack(spreads).sum() if spreads else torch.zeros((), dtype=torch.float64)
    return Sum(total, torch.tensor(len(spreads)))


def spread(pictures: Sequence[Tensor]) -> Tensor:
    """The unbiased std of each pixel over pictures, on the scale from -1 to 1, as a mean: []."""
    return torch.stack([pixels(picture) for picture in pictures]).double().div(127.5).std(0).mean()


def pixels(picture: Tensor) -> Tensor:
    """The picture on the CPU; a ValueError says what else it is."""
    if not isinstance(picture, Tensor):
        raise ValueError(f"a picture is a tensor, not {type(picture).__name__}")
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"a picture is uint8 [H, W, 3], not {picture.dtype} {[*picture.shape]}")
    return picture.cpu()
