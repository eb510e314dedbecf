"""Pictures that prompts show to families that edit, cut to size, as latents."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tandem.policies.flow.families.autoencoders import Autoencoded
from tandem.policies.flow.records import Condition, PromptInput

SHOWN = "shown"  # of a condition: latents of pictures, [N, n, *latent_shape]


def shown(condition: Condition) -> tuple[Tensor, ...]:
    """The latents of each picture that the prompts show, [N, *latent_shape]; none: ()."""
    return condition[SHOWN].unbind(1) if SHOWN in condition else ()


def fit_picture(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle of a picture with the shape of that height and width, at its size: uint8
    [H, W, 3]."""
    height, width = picture.shape[:2]
    high = min(height, width * size[0] // size[1])
    wide = min(width, height * size[1] // size[0])
    top, left = (height - high) // 2, (width - wide) // 2
    cut = picture[top : top + high, left : left + wide]
    if cut.shape[:2] == size:
        return cut
    channels = cut.permute(2, 0, 1)[None].float()
    resized = interpolate(channels, size=size, mode="bicubic", antialias=True)[0]
    return resized.clamp(0, 255).round().byte().permute(1, 2, 0)


class ImageConditions(Autoencoded):
    """Pictures that prompts show are latents of the size of those that are made."""

    images: int
    image_shape: tuple[int, ...]
    latent_shape: tuple[int, ...]

    def blank_images(self, rows: int) -> Condition:
        shape = rows, self.images, *self.latent_shape
        return {SHOWN: torch.empty(shape, device="meta")} if self.images else {}

    def look_at(self, asked: PromptInput, device: torch.device) -> Condition:
        """The latents [n, *latent_shape] of the pictures that a prompt shows, cut and resized to
        the size of those that are made; nothing where it shows none."""
        if not asked.images:
            return {}
        size = asked.size or self.image_shape[-3:-1]
        pixels = torch.stack([fit_picture(picture.load(), size) for picture in asked.images])
        return {SHOWN: self.latents(pixels, device)}
