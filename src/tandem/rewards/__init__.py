"""What a sample is worth. A reward gives a number, or it is missing and says why; never a guess."""

from tandem.rewards.call import batched, groupwise, pairwise, waits
from tandem.rewards.reward import Reward
from tandem.rewards.rewards import Rewards

__all__ = ["Reward", "Rewards", "batched", "groupwise", "pairwise", "waits"]
