"""HPSv2, human preference for a picture given its text: a CLIP model tuned on rankings,
arXiv:2306.09341."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clip import Clip, texts_of
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting
from tandem.rewards.open_clip import rename
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import refusing_others, weights_file
from tandem.types import Prompt

KEY = "reward.hpsv2.function"


@batched
@register_reward("hpsv2", judges="pictures")
class Hpsv2:
    """cos(picture, text): about 0.2 to 0.35, as published (v2 and v2.1).

    A picture that is not square is padded with black; CLIP's own processor would crop it.
    """

    def __init__(
        self,
        path: str,
        *,
        weights: str | None = None,
        processor: str | None = None,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`weights`: a safetensors file with OpenCLIP's names that replaces the weights at `path`;
        None: those are HPSv2's already."""
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key=KEY)
        if weights is not None:
            load_weights(self.clip.model, weights)

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        return self.clip.cosines([*map(square, outputs)], texts_of(prompts))


def load_weights(model: torch.nn.Module, weights: str) -> None:
    """Put OpenCLIP's weights into a transformers CLIPModel of the same sizes.

    Raises ValueError for a pickle, and for weights of another model."""
    from safetensors.torch import load_file

    path = weights_file(f"{KEY}.weights", weights, inside="['state_dict']")
    with refusing_others(f"{KEY}.weights", weights):
        model.load_state_dict(rename(load_file(path)))


def square(picture: Tensor) -> Tensor:
    """A picture in the middle of the smallest square, on black: uint8 [H, W, 3] -> [S, S, 3]."""
    high, wide, _ = pixels(picture).shape
    side = max(high, wide)
    top, left = (side - high) // 2, (side - wide) // 2
    around = [0, 0, left, side - wide - left, top, side - high - top]
    return torch.nn.functional.pad(pixels(picture), around)
