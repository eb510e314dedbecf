"""Rewards: a number for a sample, or a reason why it is missing; never a guess."""

from tandem.rewards.call import batched, groupwise, pairwise, waits
from tandem.rewards.reward import Reward
from tandem.rewards.rewards import Rewards

__all__ = ["Reward", "Rewards", "batched", "groupwise", "pairwise", "waits"]
