"""The aesthetic score of LAION, a human rating of a picture regardless of its prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.hub import shorten_error
from tandem.rewards.clip import Clip
from tandem.rewards.networks import Hosting
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import weights_file
from tandem.types import Prompt

KEY = "reward.aesthetic.function"


@batched
@register_reward("aesthetic", judges="pictures")
class Aesthetic:
    """Linear layers on the features of CLIP, at length 1: about 4 to 7, on a scale from 1 to 10.

    The published predictor has five on features of openai/clip-vit-large-patch14, without
    activations (improved-aesthetic-predictor, sac+logos+ava1-l14-linearMSE). DDPO,
    arXiv:2305.13301, trains on it.
    """

    def __init__(
        self,
        path: str,
        head: str,
        *,
        processor: str | None = None,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`head`: a safetensors file of the layers, N.weight and N.bias in their order."""
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        layers = read_layers(head)
        self.clip = Clip(path, processor, hosting, key=KEY)
        self.layers = [(w.to(hosting.place), b.to(hosting.place)) for w, b in layers]
        if self.layers[0][0].shape[1] != self.clip.model.config.projection_dim:
            raise ValueError(f"{KEY}.head={head} expects features of another model than {path}")

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        scores = self.clip.embed_pictures(outputs)
        for weight, bias in self.layers:
            scores = torch.nn.functional.linear(scores, weight, bias)
        return scores[:, 0].tolist()


def read_layers(head: str) -> list[tuple[Tensor, Tensor]]:
    """Weight [out, in] and bias [out] of each layer, by the number in their names.

    Raises ValueError for a file that has none, and for a pickle."""
    from safetensors.torch import load_file

    path = weights_file(f"{KEY}.head", head)
    try:
        found = load_file(path)
    except Exception as error:  # safetensors and the file system raise various types
        raise ValueError(f"{KEY}.head={head} cannot be read: {shorten_error(error)}") from None
    numbers = sorted({int(n) for name in found for n in re.findall(r"(\d+)\.weight$", name)})
    by_end = {re.sub(r"^.*?(\d+\.(?:weight|bias))$", r"\1", name): x for name, x in found.items()}
    if not numbers or any(f"{n}.bias" not in by_end for n in numbers):
        raise ValueError(f"{KEY}.head={head} has no layers with names such as 0.weight and 0.bias")
    return [(by_end[f"{n}.weight"].float(), by_end[f"{n}.bias"].float()) for n in numbers]
