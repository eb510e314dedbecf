"""A teacher made of the policy's own weights: their average, or the initial weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tandem.policies.weights import move


class WeightAverage:
    """average <- (1 - rate) average + rate live, after every update, in float32.

    In bfloat16 small changes would be rounded away. Only trained weights are copied; the base of
    adapters is shared.
    """

    def __init__(self, network: nn.Module, *, rate: float) -> None:
        """rate: 0 keeps the initial weights."""
        frozen = {id(p): p for p in network.parameters() if not p.requires_grad}
        self.live = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.network, self.rate = copy.deepcopy(network, frozen).requires_grad_(False), rate
        taught = self.live.items() if rate else ()
        self.averages = {name: p.detach().float().clone() for name, p in taught}

    @torch.no_grad()
    def follow(self) -> None:
        """Follow an update of the live weights."""
        if not self.rate:
            return
        for name, live in self.live.items():
            kept = self.averages[name].to(live.device)
            self.averages[name] = kept.lerp_(live.detach().float(), self.rate)
        self._hand_over()

    def state(self) -> dict[str, Tensor]:
        """teacher/NAME -> average; empty for constant weights. Any shape [...]."""
        return {f"teacher/{name}": x for name, x in self.averages.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; other keys are ignored. Of any shape [...]."""
        if not self.rate:
            return
        for name in self.averages:
            self.averages[name] = state[f"teacher/{name}"].to(self.live[name].device).clone()
        self._hand_over()

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Let the network's copy hold the averages, on their device."""
        move(self.network, next(iter(self.averages.values())).device)
        copies = dict(self.network.named_parameters())  # moving a module may replace them
        for name, average in self.averages.items():
            copies[name].copy_(average)
