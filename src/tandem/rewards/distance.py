"""The distance of a picture to the nearest other one of its group: a reward of weight 0, which
algorithm/advantage=by_distance reads.

A picture is uint8 [H, W, 3].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import declare, register_reward
from tandem.rewards.clip import unit
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, network
from tandem.rewards.signature import groupwise
from tandem.types import Prompt

Features = Callable[[Sequence[Tensor]], Tensor]  # pictures of a group -> [N, D]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, which vision models read


def of_pixels(pictures: Sequence[Tensor]) -> Tensor:
    """The pixels themselves, less the mean of each picture: [N, 3 H W] in place of features."""
    flat = torch.stack([pixels(picture).flatten().float() for picture in pictures])
    return flat - flat.mean(1, keepdim=True)


@declare(judges_itself=True)
class Vision:
    """Pooled features of a transformers vision model, such as DINOv2 or DINOv3."""

    def __init__(
        self,
        path: str,
        *,
        side: int = 224,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`path`: a folder, or a name on the hub; `side`: pixels that the model reads along one."""
        from transformers import AutoModel

        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        key = "reward.nearest_distance.function.features.path"
        self.model, self.side = network(AutoModel, path, key, self.hosting), side

    @torch.no_grad()
    def __call__(self, pictures: Sequence[Tensor]) -> Tensor:
        parts = [self._seen(part) for part in self.hosting.parts(pictures)]
        return torch.cat(parts).float().cpu()

    def _seen(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D]"""
        shown = torch.stack([pixels(picture) for picture in pictures]).permute(0, 3, 1, 2) / 255
        sized = torch.nn.functional.interpolate(
            shown, size=(self.side, self.side), mode="bicubic", antialias=True
        )
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
        given = ((sized - mean) / std).to(self.model.device, self.model.dtype)
        return self.model(pixel_values=given).pooler_output


@register_reward(judges="pictures")
@groupwise
def nearest_distance(
    outputs: Sequence[Tensor], prompt: Prompt, *, features: Features = of_pixels
) -> list[float | None]:
    """1 - cosine to the nearest other picture of the group; None of a picture that is alone.

    Source: GARDO, arXiv:2512.24138. `outputs`: uint8 [H, W, 3].
    """
    if len(outputs) < 2:
        return [None] * len(outputs)
    return nearest(features(outputs)).tolist()


def nearest(features: Tensor) -> Tensor:
    """1 - cosine to the nearest other row: [N, D] -> [N]."""
    own = unit(features)
    return 1 - (own @ own.T).fill_diagonal_(-torch.inf).amax(1)
