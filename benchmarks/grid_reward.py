"""The reward of the grid, as a plugin: `plugins=[grid_reward] reward=by_text`."""

from workloads import score

from tandem import register_reward
from tandem.types import Prompt


@register_reward
def by_text(output: str, prompt: Prompt) -> float:
    """A number in [0, 1) derived from the answer's text; 0 in groups that must tie."""
    return score(output, prompt.answer)
