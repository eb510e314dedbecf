"""Stateful components: modules that an algorithm carries between iterations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Self

from torch import nn

from tandem.contracts.parts import unwrap_partial


class StatefulComponent(nn.Module):
    """A module of float64 buffers on the CPU, which may report metrics."""

    def report(self) -> dict[str, float]:
        """The metrics after the updates of each iteration; none by default."""
        return {}

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        # It stays in float64 on the CPU when the module around it is moved or cast.
        return self


def modules_in(name: str, part: Any) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of the modules in a component, including those inside wrappers."""
    function, numbers = unwrap_partial(part)
    if isinstance(function, nn.Module):
        yield name, function
    inside = dict(function) if isinstance(function, Mapping) else numbers
    if is_dataclass(function):
        inside = {own.name: getattr(function, own.name) for own in fields(function)}
    for key, value in inside.items():
        yield from modules_in(f"{name}.{key}", value)
