"""Boolean masks on the meta device, treated as all True because they have no values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class MasksOfOnes(TorchFunctionMode):
    """A mask selects all rows, its complement none, and `torch.all` is True."""

    def __init__(self) -> None:
        super().__init__()
        self.opposites: list[Tensor] = []

    def __torch_function__(
        self, function: Callable, types: Sequence, args: Sequence = (), given: Mapping | None = None
    ) -> object:
        if function is torch.all:
            return True
        if function is Tensor.__getitem__ and is_mask(args[1]):
            none = any(args[1] is one for one in self.opposites)
            return args[0][:0] if none else args[0]
        said = function(*args, **(given or {}))
        if function is Tensor.__invert__:
            self.opposites.append(said)
        return said


def is_mask(index: object) -> bool:
    """Whether the index is a boolean mask."""
    return isinstance(index, Tensor) and index.dtype == torch.bool
