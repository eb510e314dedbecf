"""PickScore, human preference for a picture given its text: a CLIP model tuned on choices,
arXiv:2305.01569."""

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
@register_reward("pickscore", judges="pictures")
class PickScore:
    """logit_scale.exp() * cos(picture, text) / divisor.

    With divisor 1 it is the published score, about 15 to 25. Divisor 26 brings it below 1, as in
    Flow-GRPO (flow_grpo/pickscore_scorer.py) and work that uses its numbers.
    """

    def __init__(
        self,
        path: str,
        *,
        processor: str | None = None,
        divisor: float = 26.0,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key="reward.pickscore.function")
        self.factor = self.clip.scale / divisor

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        return [self.factor * cosine for cosine in self.clip.cosines(outputs, texts_of(prompts))]
