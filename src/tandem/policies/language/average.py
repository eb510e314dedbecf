"""A copy of a policy's network that its own weights teach: an average of them, or as it began."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tandem.policies.weights import move


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
        taught = self.live.items() if rate else ()
        self.averages = {name: p.detach().float().clone() for name, p in taught}

    @torch.no_grad()
    def follow(self) -> None:
        """An update of the live weights was made."""
        if not self.rate:
            return
        for name, live in self.live.items():
            kept = self.averages[name].to(live.device)
            self.averages[name] = kept.lerp_(live.detach().float(), self.rate)
        self._hand_over()

    def state(self) -> dict[str, Tensor]:
        """teacher/NAME -> average; nothing of weights that stay as they began. Any shape [...]."""
        return {f"teacher/{name}": x for name, x in self.averages.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave, among other things. Of any shape [...]."""
        if not self.rate:
            return
        for name in self.averages:
            self.averages[name] = state[f"teacher/{name}"].to(self.live[name].device).clone()
        self._hand_over()

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Let the copy of the network be the averages, where they lie."""
        move(self.network, next(iter(self.averages.values())).device)
        copies = dict(self.network.named_parameters())  # moving a module may replace them
        for name, average in self.averages.items():
            copies[name].copy_(average)
