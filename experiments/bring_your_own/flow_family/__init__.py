"""A family of flow models: `model=conv_flow`."""

import torch
from diffusers import ConfigMixin, ModelMixin

from tandem import register_flow_family
from tandem.policies.flow.families.tiny_flow import SIZE, TinyFlow


class Net(ModelMixin, ConfigMixin):
    def __init__(self) -> None:
        super().__init__()
        self.read = torch.nn.Linear(161, 3)  # five words of 32 numbers, and a noise level
        self.paint = torch.nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, seen):
        return self.paint(x + self.read(seen)[:, :, None, None])


@register_flow_family("conv_flow", latent_size=3 * SIZE * SIZE)
class ConvFlow(TinyFlow):
    patch = 4

    def load(self, path, dtype):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Net() if path is None else Net.from_pretrained(path, subfolder="transformer")

    def velocity(self, network, x, sigma, condition):
        return network(x, torch.cat([condition["pooled"], sigma.to(x)[:, None]], 1))
