"""A family of flow models: `model=conv_flow`."""

import torch
from diffusers import ConfigMixin, ModelMixin
from torch import nn

from tandem import register_flow_family
from tandem.policies.flow.families.tiny_flow import SIZE, TinyFlow


class Network(ModelMixin, ConfigMixin):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(161, 3)  # five words of 32 numbers, and a noise level
        self.paint = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, sigma, words):
        colour = self.read(torch.cat([words, sigma.to(words)[:, None]], 1))
        return self.paint(x + colour[:, :, None, None])


@register_flow_family("conv_flow", latent_size=3 * SIZE * SIZE)
class ConvFlow(TinyFlow):
    patch = 4

    def load(self, path, dtype):
        return Network() if path is None else Network.from_pretrained(path, subfolder="transformer")

    def velocity(self, network, x, sigma, condition):
        return network(x, sigma, condition["pooled"])
