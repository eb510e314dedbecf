"""The critic of a flow: predicts the reward of a picture from the state before a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlowCritic(nn.Module):
    """Two layers on the mean over tokens of the transformer's last hidden states."""

    def __init__(self, width: int) -> None:
        """The head starts at 0: a value of 0 is better than one of random weights."""
        super().__init__()
        self.inner, self.head = nn.Linear(width, width), nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[N, H] -> [N] float32."""
        inside = nn.functional.silu(self.inner(states.to(self.inner.weight.dtype)))
        return self.head(inside)[:, 0]


def new_critic(width: int, *, seed: int) -> FlowCritic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FlowCritic(width)
