"""Image conditions of families that edit: input images, cropped to size, as latents."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tandem.data.decoding import middle
from tandem.policies.flow.families.autoencoders import Autoencoded
from tandem.policies.flow.records import Condition, PromptInput

SHOWN = "shown"  # key of a condition: latents of input images, [N, n, *latent_shape]


def input_latents(condition: Condition) -> tuple[Tensor, ...]:
    """The latents of each input image of the prompts, [N, *latent_shape]; () without images."""
    return condition[SHOWN].unbind(1) if SHOWN in condition else ()


def fit_picture(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """A picture cropped at its centre and resized to height x width: uint8 [H, W, 3]."""
    top, left, high, wide = middle(*picture.shape[:2], size)
    cut = picture[top : top + high, left : left + wide]
    if cut.shape[:2] == size:
        return cut
    channels = cut.permute(2, 0, 1)[None].float()
    resized = interpolate(channels, size=size, mode="bicubic", antialias=True)[0]
    return resized.clamp(0, 255).round().byte().permute(1, 2, 0)


class ImageConditions(Autoencoded):
    """Input images of a prompt as latents of the size of generated ones."""

    images: int
    image_shape: tuple[int, ...]
    latent_shape: tuple[int, ...]

    def blank_images(self, rows: int) -> Condition:
        shape = rows, self.images, *self.latent_shape
        return {SHOWN: torch.empty(shape, device="meta")} if self.images else {}

    def look_at(self, asked: PromptInput, device: torch.device) -> Condition:
        """The latents [n, *latent_shape] of a prompt's input images, cropped and resized to the
        size of generated images; {} without images."""
        if not asked.images:
            return {}
        size = asked.size or self.image_shape[-3:-1]
        pixels = torch.stack([fit_picture(picture.load(), size) for picture in asked.images])
        return {SHOWN: self.latents(pixels, device)}
