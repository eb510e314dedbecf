"""The precision of a policy's passes: of the forward passes of its networks, and of nothing else.

Rewards, advantages, losses and metrics are computed outside of it, in the dtype of what they get.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    mixed: bool = False  # bfloat16 autocast; False: the dtype of the weights

    def on(self, device: torch.device) -> AbstractContextManager[None]:
        """Around a pass on that device. Its backward follows the dtypes of the forward."""
        if not self.mixed:
            return nullcontext()
        # What autocast keeps of a weight would outlive an optimiser step.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)

    def is_exact(self, network: nn.Module) -> bool:
        """Whether weights and passes are float32 or wider."""
        return not self.mixed and all(p.dtype in WIDE for p in network.parameters())


FULL = Precision()
