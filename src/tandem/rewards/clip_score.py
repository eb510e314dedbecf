"""The CLIP score, arXiv:2104.08718: whether a picture matches its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clip import Clip, texts_of
from tandem.rewards.networks import Hosting
from tandem.rewards.signature import batched
from tandem.types import Prompt


@batched
@register_reward("clip_score", judges="pictures")
class ClipScore:
    """factor * max(cos(picture, text), 0).

    Factor 100 is that of torchmetrics, whose model is openai/clip-vit-large-patch14; the paper uses
    2.5 with ViT-B/32 and prefixes texts with "A photo depicts", which is not done here.
    """

    def __init__(
        self,
        path: str,
        *,
        processor: str | None = None,
        factor: float = 100.0,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key="reward.clip_score.function")
        self.factor = factor

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        cosines = self.clip.cosines(outputs, texts_of(prompts))
        return [self.factor * max(cosine, 0.0) for cosine in cosines]
