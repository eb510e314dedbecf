"""Packing of latents into 2 x 2 patches, as FLUX and Qwen-Image read them, with positions."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(pictures: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H/2 * W/2, 4 C], row by row; within a patch, channel by channel."""
    count, channels, height, width = pictures.shape
    cut = pictures.reshape(count, channels, height // 2, 2, width // 2, 2)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, 4 * channels)


def unpack(patches: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `pack`: [N, C, height, width]."""
    count, _, numbers = patches.shape
    cut = patches.reshape(count, height // 2, width // 2, numbers // 4, 2, 2)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(count, numbers // 4, height, width)


def places(picture: int, height: int, width: int) -> Tensor:
    """Positions of patches, row by row: [height * width, 3] of (picture, row, column)."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.full_like(rows, picture), rows, columns], -1).flatten(0, 1)
