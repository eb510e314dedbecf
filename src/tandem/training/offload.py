"""Optimiser offloading: state in host memory, moved to the device of the weights for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

OPTIMIZER = "optimizer"  # in trainer.offload
HOST = torch.device("cpu")
Make = Callable[[Iterable], Optimizer]


def with_offloading(make: Make) -> Make:
    """The same optimiser with offloading hooks; its results are unchanged."""

    def make_offloading(groups: Iterable) -> Optimizer:
        optimizer = make(groups)
        optimizer.register_step_pre_hook(lambda own, *_: move_state(own, None))
        optimizer.register_step_post_hook(lambda own, *_: move_state(own, HOST))
        return optimizer

    return make_offloading


def move_state(optimizer: Optimizer, device: torch.device | None) -> None:
    """Move the state of each weight to a device; None: to that of the weight. Step counters stay
    where the optimiser keeps them."""
    for weight, kept in optimizer.state.items():
        where = weight.device if device is None else device
        for name, x in kept.items():
            if isinstance(x, Tensor) and x.numel() > 1:
                kept[name] = x.to(where)
