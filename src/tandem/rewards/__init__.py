"""What a sample is worth. A reward gives a number, or it is missing and says why; never a guess."""

from tandem.rewards.reward import Reward, Rewards, batched

__all__ = ["Reward", "Rewards", "batched"]
