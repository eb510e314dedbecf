"""Rewards: a number for a sample, or the reason why it is missing."""

from tandem.rewards.rewards import Reward, Rewards
from tandem.rewards.signature import batched, groupwise, pairwise, waits

__all__ = ["Reward", "Rewards", "batched", "groupwise", "pairwise", "waits"]
