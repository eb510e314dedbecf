"""Rewards for any output, `plugins=[coin]`: 0 or 1, which hardly ever ties, and a height."""

from zlib import crc32

from torch import Tensor

from tandem import register_reward
from tandem.types import Prompt


@register_reward
def coin(output: str | Tensor, prompt: Prompt) -> float:
    """0 or 1 by the bytes of the answer or the image."""
    seen = output.encode() if isinstance(output, str) else output.cpu().numpy().tobytes()
    return float(crc32(seen) % 2)


@register_reward
def height(output: Tensor, prompt: Prompt) -> float:
    """Height of an image or a video, in pixels."""
    return float(output.shape[-3])
