"""A small U-Net, conditioned on a sum of word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.loaders import PeftAdapterMixin
from torch import Tensor, nn
from torch.nn import functional as F

FOLD = 2  # side of the pixel block that the first level sees as one position
GROUPS = 8  # of a GroupNorm
LEVELS, READ = 64, 128  # width of the noise level's embedding, and of the condition
LEAST = 0.05  # lower bound of the noise level that the image error is divided by
BOOST = 4.0  # scale of the words, which the noise level would otherwise outweigh at first


class TinyUNet(ModelMixin, ConfigMixin, PeftAdapterMixin):
    """Predicts the image, and from it the velocity: (x - picture) / sigma.

    Convolutions see a whole edge, which a transformer assembles from patches. An image is easier to
    predict than a velocity, whose noise must pass through the network pixel by pixel
    (arXiv:2511.13720). Words enter as a sum, without a layer that could memorise pairs, so
    unseen pairs of a colour and a shape are drawn too.
    """

    _supports_gradient_checkpointing = True
    _no_split_modules = ("ResidualBlock",)

    @register_to_config
    def __init__(self, *, channels: Sequence[int], text: int) -> None:
        """channels: per level, each at half the resolution; text: width of a text's vector."""
        super().__init__()
        self.gradient_checkpointing = False
        steps = [*pairwise(channels)]
        self.read_level = nn.Sequential(
            nn.Linear(LEVELS, READ), nn.SiLU(), nn.Linear(READ, READ), nn.SiLU()
        )
        self.read_words = nn.Linear(text, READ)
        self.enter = nn.Conv2d(3 * FOLD**2, channels[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(ResidualBlock(wide, wide) for wide, _ in steps)
        self.down = nn.ModuleList(nn.Conv2d(*step, 2, stride=2) for step in steps)
        self.middle_blocks = nn.ModuleList([ResidualBlock(channels[-1], channels[-1])])
        self.states = nn.Identity()  # a critic reads its output
        self.up = nn.ModuleList(nn.ConvTranspose2d(*step[::-1], 2, stride=2) for step in steps)
        self.up_blocks = nn.ModuleList(ResidualBlock(2 * wide, wide) for wide, _ in steps)
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, channels[0]), nn.SiLU(),
            nn.Conv2d(channels[0], 3 * FOLD**2, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor, sigma: Tensor, words: Tensor) -> Tensor:
        """Velocities: [N, 3, H, W], sigma [N], words [N, text]."""
        condition = self.read_level(waves(sigma).to(x))
        condition = condition + self.read_words(words * (BOOST / words.shape[1] ** 0.5))
        inside, passed = self.enter(F.pixel_unshuffle(x, FOLD)), []
        for block, down in zip(self.down_blocks, self.down, strict=True):
            passed.append(self._through(block, inside, condition))
            inside = down(passed[-1])
        inside = self._through(self.middle_blocks[0], inside, condition)
        inside = self.states(inside.flatten(2).mT).mT.reshape(inside.shape)
        for block, up in zip(reversed(self.up_blocks), reversed(self.up), strict=True):
            inside = self._through(block, torch.cat([up(inside), passed.pop()], 1), condition)
        picture = F.pixel_shuffle(self.leave(inside), FOLD)
        return (x - picture) / sigma.clamp(min=LEAST).to(x)[:, None, None, None]

    def _through(self, block: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return self._gradient_checkpointing_func(block, x, condition)
        return block(x, condition)


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection, initialised to the skip connection alone."""

    def __init__(self, given: int, wide: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(GROUPS, given), nn.GroupNorm(GROUPS, wide)])
        self.first = nn.Conv2d(given, wide, 3, padding=1)
        self.second = nn.Conv2d(wide, wide, 3, padding=1)
        self.modulate = nn.Linear(READ, 2 * wide)
        self.skip = nn.Conv2d(given, wide, 1) if given != wide else nn.Identity()
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[N, given, H, W] and [N, READ] -> [N, wide, H, W]"""
        scale, shift = self.modulate(condition)[:, :, None, None].chunk(2, 1)
        inside = self.norms[1](self.first(F.silu(self.norms[0](x))))
        return self.skip(x) + self.second(F.silu(inside * (1 + scale) + shift))


def waves(sigma: Tensor) -> Tensor:
    """Cosines and sines of a noise level at 1 to 1000 radians: [N] -> [N, LEVELS]."""
    rates = torch.logspace(0, 3, LEVELS // 2, device=sigma.device)
    angles = sigma.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], 1)
