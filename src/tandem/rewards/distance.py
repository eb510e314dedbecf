"""The distance of a picture to the nearest other one of its group: a reward of weight 0, which
algorithm/advantage=by_distance reads.

A picture is uint8 [H, W, 3].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clip import unit
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting
from tandem.rewards.signature import groupwise
from tandem.rewards.vision import Vision
from tandem.types import Prompt

KEY = "reward.nearest_distance.function"


@groupwise
@register_reward("nearest_distance", judges="pictures")
class NearestDistance:
    """1 - cosine to the nearest other picture of the group; None for a single picture.

    The cosine is of pixels, minus the mean of each picture, or of the pooled features of a vision
    model such as DINOv2 or DINOv3. Source: GARDO, arXiv:2512.24138.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        side: int = 224,
        batch_size: int = 16,  # pictures per pass of the model; affects memory only
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",  # type of the model's weights
        device: str = "auto",  # auto: the one that this rank trains on
    ) -> None:
        """`path`: a folder, or a name on the hub, of a transformers model; None: pixels. `side`:
        pixels that the model reads along one."""
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.vision = None if path is None else Vision(path, side, hosting, key=KEY)

    def __call__(self, outputs: Sequence[Tensor], prompt: Prompt) -> list[float | None]:
        if len(outputs) < 2:
            return [None] * len(outputs)
        return nearest(self.features(outputs)).tolist()

    def features(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D] float32"""
        if self.vision is not None:
            return self.vision.features(pictures)
        flat = torch.stack([pixels(picture).flatten().float() for picture in pictures])
        # In float32 the mean of a picture of one grey may differ from it.
        return flat - flat.mean(1, keepdim=True, dtype=torch.float64).float()


def nearest(features: Tensor) -> Tensor:
    """1 - cosine to the nearest other row: [N, D] -> [N]. Rows of zeros, such as pictures of one
    grey, have cosine 1 with one another and 0 with others."""
    own = torch.cat([unit(features), (features == 0).all(1, keepdim=True)], 1)
    return 1 - (own @ own.T).fill_diagonal_(-torch.inf).amax(1)
