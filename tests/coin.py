"""A plugin with a reward of 0 or 1 that hardly ever ties: `plugins=[coin] reward=coin`."""

from zlib import crc32

from torch import Tensor

from tandem.registry import register_reward
from tandem.types import Prompt


@register_reward
def coin(output: str | Tensor, prompt: Prompt) -> float:
    """0 or 1 by the bytes of the answer or the image."""
    seen = output.encode() if isinstance(output, str) else output.cpu().numpy().tobytes()
    return float(crc32(seen) % 2)
