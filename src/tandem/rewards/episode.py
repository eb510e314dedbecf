"""The reward of an episode: the sum of its moves' rewards."""

from __future__ import annotations

from tandem.contracts import register_reward
from tandem.types import Prompt


@register_reward(judges="texts", of_moves=True)
def episode(output: str, prompt: Prompt) -> float | None:
    """The sum of the environment's rewards for the moves; None without an environment."""
    if prompt.episode is None:
        return None
    moves = [turn for turn in prompt.episode["turns"] if turn["role"] == "assistant"]
    return sum(move.get("reward", 0.0) for move in moves)
