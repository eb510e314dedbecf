"""The critic of an actor-critic: the expected return from each state."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["head", "separate"]


class Critic(nn.Module):
    """A linear head on hidden states of the policy, or of a trunk of its own."""

    def __init__(self, width: int, layers: nn.Module | None) -> None:
        """The head starts at 0, which predicts better than random weights."""
        super().__init__()
        self.layers = layers
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[N, H] -> [N] float32."""
        device = states.device.type
        with torch.autocast(device, enabled=False):
            return self.head(states.to(self.head.weight.dtype))[:, 0]


def critic_of(model: nn.Module, kind: Kind, *, splits: bool) -> Critic:
    """`head` reads the states that the policy's head reads; `separate` starts as a copy of it.

    Raises ValueError if the model has no layers that can be read apart from its head.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if decoder is model or head is None or (kind == "head" and not splits):
        raise ValueError(
            f"model.critic={kind}: {type(model).__name__} does not return the hidden states before "
            "its head"
            + ("; set model.critic=separate" if decoder is not model and head is not None else "")
        )
    layers = copy.deepcopy(decoder).requires_grad_(True) if kind == "separate" else None
    return Critic(head.weight.shape[1], layers).to(head.weight.device)
