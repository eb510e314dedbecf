"""The embedded flow model of `model=tiny_flow`: a small U-Net, in the space of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.folders import loaded
from tandem.policies.flow.families.tiny_flow import CHANNELS, SIZE, WIDTH, WORDS, TinyFlow
from tandem.policies.flow.records import Condition


class TinyUNetFlow(TinyFlow):
    """As `TinyFlow`, but for its network, which paints clean edges in the same time."""

    lora_targets = ("modulate", "read_words")
    latent_shape = (CHANNELS, SIZE, SIZE)

    def __init__(self, *, seed: int = 0, channels: Sequence[int] = (32, 64)) -> None:
        """A new model is a function of the seed; the vectors of words are always the same.

        channels: of the levels of the U-Net, from the outermost in, each half as wide as the last.
        """
        super().__init__(seed=seed)
        self.channels = list(channels)

    @property
    def tokens(self) -> tuple[int, int]:
        """The places of the innermost level, and words."""
        return (SIZE // 2 ** len(self.channels)) ** 2, WORDS

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        network = self._new() if path is None else self._saved(Path(path), dtype)
        return network if dtype in (None, network.dtype) else network.to(dtype)

    def _new(self) -> nn.Module:
        from tandem.policies.flow.families.tiny_unet import TinyUNet

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return TinyUNet(channels=self.channels, text=WORDS * WIDTH)

    def _saved(self, folder: Path, dtype: torch.dtype | None) -> nn.Module:
        from tandem.policies.flow.families.tiny_unet import TinyUNet

        return loaded(folder, "transformer", TinyUNet, dtype or "auto")

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """noise - x0 as the network predicts it: [B, C, H, W], sigma [B]."""
        dtype = network.enter.weight.dtype
        return network(x.to(dtype), sigma, condition["pooled"].to(dtype))

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.states, network.config.channels[-1]
