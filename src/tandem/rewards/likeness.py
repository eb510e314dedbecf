"""Similarity of pictures by a vision model: to those of the prompt, and to one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clip import unit
from tandem.rewards.networks import Hosting
from tandem.rewards.signature import batched, groupwise
from tandem.rewards.vision import Vision
from tandem.types import Prompt


@batched
@register_reward("dino_similarity", judges="pictures", reads={"images"})
class DinoSimilarity:
    """The mean cosine of a picture's features with those of the pictures in its prompt.

    These are the prompt's `images`, as in editing; None for a prompt without any. DreamBooth,
    arXiv:2208.12242, measures the identity of an object with it, using ViT-S/16 of DINO.
    """

    def __init__(
        self,
        path: str,
        *,
        side: int = 224,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.vision = Vision(path, side, hosting, key="reward.dino_similarity.function")

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float | None]:
        known = [place for place, prompt in enumerate(prompts) if prompt.images]
        scores: list[float | None] = [None] * len(outputs)
        if known:
            shown = {one.name: one for place in known for one in prompts[place].images}
            made = unit(self.vision.features([outputs[place] for place in known]))
            given = unit(self.vision.features([one.load() for one in shown.values()]))
            names = [*shown]
            for place, own in zip(known, made, strict=True):
                rows = [names.index(one.name) for one in prompts[place].images]
                scores[place] = (given[rows] @ own).mean().item()
        return scores


@groupwise
@register_reward("dino_diversity", judges="pictures")
class DinoDiversity:
    """1 - the mean cosine of a picture's features with those of the others of its group; None for a
    single picture.

    The mean over a group is DreamBooth's diversity, arXiv:2208.12242, with other features. It
    ignores the prompt, so combine it with a reward that does not.
    """

    def __init__(
        self,
        path: str,
        *,
        side: int = 224,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.vision = Vision(path, side, hosting, key="reward.dino_diversity.function")

    def __call__(self, outputs: Sequence[Tensor], prompt: Prompt) -> list[float | None]:
        if len(outputs) < 2:
            return [None] * len(outputs)
        features = unit(self.vision.features(outputs))
        others = (features @ features.T).fill_diagonal_(0.0).sum(1) / (len(outputs) - 1)
        return torch.sub(1, others).tolist()
