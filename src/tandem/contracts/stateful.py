"""Stateful components: modules that an algorithm carries between iterations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import nn


class StatefulComponent(nn.Module):
    """A module of float64 buffers on the CPU, which may speak in the metrics of a run."""

    def report(self) -> dict[str, float]:
        """The metrics of a component after each iteration's updates; none, unless it says."""
        return {}

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        # It stays in float64 on the CPU when the module around it is moved or cast.
        return self
