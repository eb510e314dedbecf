"""An example reward: the share of the answer that is in the right place."""

from tandem import register_reward
from tandem.types import Prompt


@register_reward
def places(output: str, prompt: Prompt, *, extra: float = 0.5) -> float:
    """Share of letters in their place, minus `extra` for every surplus letter."""
    right = sum(a == b for a, b in zip(output, prompt.answer, strict=False))
    too_many = max(0, len(output) - len(prompt.answer))
    return (right - extra * too_many) / len(prompt.answer)
