"""The reward of an episode: what the environment gave, move by move."""

from __future__ import annotations

from tandem.contracts import register_reward
from tandem.types import Prompt


@register_reward(judges="texts", of_moves=True)
def episode(output: str, prompt: Prompt) -> float | None:
    """The sum of what the environment gave for the moves; None where there was none."""
    if prompt.episode is None:
        return None
    moves = [turn for turn in prompt.episode["turns"] if turn["role"] == "assistant"]
    return sum(move.get("reward", 0.0) for move in moves)
