"""A reward: `reward=vowels`."""

from tandem import register_reward
from tandem.types import Prompt


@register_reward
def vowels(output: str, prompt: Prompt, *, wanted: str = "aei") -> float:
    """The share of wanted letters, from 0 to 1."""
    return sum(letter in wanted for letter in output) / max(len(output), 1)
