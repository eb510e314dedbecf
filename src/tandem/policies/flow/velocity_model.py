"""The velocity field of one network: what it predicts at a point, for a prompt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.dynamics.guidance import guided, guides
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.embeddings import PromptEmbedding
from tandem.policies.flow.records import Condition
from tandem.policies.weights import Precision, Replicated


class VelocityModel:
    def __init__(
        self,
        network: nn.Module,
        adapter: Adapter,
        *,
        precision: Precision,
        compiled: bool = False,
    ) -> None:
        self.network, self.adapter, self.precision = network, adapter, precision
        self.run = torch.compile(network, dynamic=True) if compiled else network
        self.weights = Replicated()

    def __call__(
        self, x: Tensor, sigma: Tensor, conditioning: PromptEmbedding, *, scale: float
    ) -> Tensor:
        """[N, ...] float32, guided by classifier-free guidance if scale is above 1. sigma: [N]"""
        prompted, unprompted = conditioning.prompted, conditioning.unprompted
        if unprompted is None or not guides(scale):
            return guided(self.predict(x, sigma, prompted), None, scale=scale)
        both = {name: torch.cat([prompted[name], unprompted[name]]) for name in prompted}
        velocity = self.predict(torch.cat([x, x]), torch.cat([sigma, sigma]), both)
        return self.adapter.guide(*velocity.chunk(2), scale=scale)

    def with_states(
        self, x: Tensor, sigma: Tensor, conditioning: PromptEmbedding, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The velocity, and the mean over tokens of the last hidden states for the prompt: [N, H].

        The network must not be compiled: it would show its states at the first call alone.
        """
        seen: list[Tensor] = []
        reader, _ = self.adapter.reader(self.network)
        hook = reader.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            velocity = self(x, sigma, conditioning, scale=scale)
        finally:
            hook.remove()
        return velocity, seen[0][: len(x)].mean(1)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        with self.precision.on(x.device):
            return self.weights(lambda: self.adapter.velocity(self.run, x, sigma, condition))
