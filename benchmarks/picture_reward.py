"""The reward of the pipeline beside Flow-Factory, as a plugin: `plugins=[picture_reward]`."""

from torch import Tensor

from tandem import register_reward
from tandem.types import Prompt


@register_reward(judges="pictures")
def brightness(output: Tensor, prompt: Prompt) -> float:
    """How bright a picture [H, W, 3] is, from 0 to 1."""
    return float(output.double().mean()) / 255
