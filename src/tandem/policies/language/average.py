"""A copy of a policy's network that its own weights teach: an average of them, or as it began."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """average <- (1 - rate) average + rate live, after every update, in float32.

    In bfloat16 the small steps would round to none. What is not trained is not copied: the base of
    adapters is there once.
    """

    def __init__(self, network: nn.Module, *, rate: float) -> None:
        """rate: 0 keeps the weights as they are."""
        frozen = {id(p): p for p in network.parameters() if not p.requires_grad}
        self.live = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.network, self.rate = copy.deepcopy(network, frozen).requires_grad_(False), rate
        self.copies = {n: p for n, p in self.network.named_parameters() if n in self.live}
        self.averages = {name: p.detach().float() for name, p in self.copies.items()}

    @torch.no_grad()
    def follow(self) -> None:
        """An update of the live weights was made."""
        if not self.rate:
            return
        for name, live in self.live.items():
            kept = self.averages[name].to(live.device)
            self.averages[name] = kept.lerp_(live.detach().float(), self.rate)
            self.copies[name].data = self.averages[name].to(live.dtype)

    def state(self) -> dict[str, Tensor]:
        """teacher/NAME -> average; nothing of weights that stay as they began. Any shape [...]."""
        averages = self.averages if self.rate else {}
        return {f"teacher/{name}": x for name, x in averages.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave, among other things. Of any shape [...]."""
        for name in self.averages if self.rate else ():
            live = self.live[name]
            self.averages[name] = state[f"teacher/{name}"].to(live.device).clone()
            self.copies[name].data = self.averages[name].to(live.dtype)
