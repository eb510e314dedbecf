"""Features of a vision model such as DINOv2 or DINOv3, for the similarity of pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, network

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, which vision models read


class Vision:
    """A transformers model whose pooled output describes a picture."""

    def __init__(self, path: str, side: int, hosting: Hosting, *, key: str) -> None:
        """Load the weights from `path`, the setting `key`. `side`: pixels of one side of its
        input."""
        from transformers import AutoModel

        self.side, self.hosting = side, hosting
        self.model = network(AutoModel, path, f"{key}.path", hosting)

    @torch.no_grad()
    def features(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D] float32, of pictures uint8 [H, W, 3], each resized to a square."""
        return torch.cat([self._embed(part) for part in self.hosting.parts(pictures)]).float().cpu()

    def _embed(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D]"""
        sized = torch.cat([self._resize(pixels(picture)) for picture in pictures])
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
        given = ((sized - mean) / std).to(self.model.device, self.model.dtype)
        return self.model(pixel_values=given).pooler_output

    def _resize(self, picture: Tensor) -> Tensor:
        """[1, 3, side, side], clamped to [0, 1], which bicubic resizing exceeds at edges."""
        levels, size = picture.permute(2, 0, 1)[None].float(), (self.side, self.side)
        shown = torch.nn.functional.interpolate(levels, size, mode="bicubic", antialias=True)
        return shown.round().clamp(0, 255) / 255
