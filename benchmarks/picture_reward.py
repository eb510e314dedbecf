"""The reward of the comparison with Flow-Factory, a plugin: `plugins=[picture_reward]`."""

from torch import Tensor

from tandem import register_reward
from tandem.types import Prompt


@register_reward(judges="pictures")
def brightness(output: Tensor, prompt: Prompt) -> float:
    """Brightness of an image [H, W, 3], from 0 to 1."""
    return float(output.double().mean()) / 255
