"""Outputs of components: shape, dtype, gradient and finite values, plugins and built-ins alike.

A number for a whole micro-batch would broadcast over its steps, and what is learnt would then
depend on how an update is cut for memory. All but `finite` costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.contracts import facts_of, unbound
from tandem.stop import Stop

WIDE = (torch.float32, torch.float64)


class WrongOutput(Stop, ValueError):
    """A component returned what its kind must not return. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a kind of component returns: [B, T], float32 or wider."""

    kind: str
    of_samples: bool = False  # or [B, 1], the same number for all steps of a sample
    learns: bool = False  # with a gradient, if there is one to be had; else without
    finite: bool = False

    def check(self, part: Callable, value: Tensor, mask: Tensor, *, learns: bool = False) -> Tensor:
        """The value, if it may be used. mask: [B, T]; `learns`: there is a gradient to be had."""
        fault = self._of_shape(part, value, mask) or self._of_values(value, mask, learns)
        if fault:
            owner = unbound(part)[0]
            raise WrongOutput(
                f"{self.kind} {getattr(owner, '__name__', type(owner).__name__)} {fault}"
            )
        return value

    def _of_shape(self, part: Callable, value: Tensor, mask: Tensor) -> str | None:
        want = tuple(mask.shape)
        wanted = f"[B, T], here {[*want]}"
        if not isinstance(value, Tensor):
            return f"returned {type(value).__name__}; return a tensor {wanted}"
        shape = tuple(value.shape)
        if shape == want or (shape == (want[0], 1) and self._may_be_of_samples(part)):
            return None
        if value.ndim == 0:
            return (
                "returned one number, which depends on how an update is cut for memory; leave out "
                f".mean() or .sum() at the end and return {wanted}: algorithm.weights add it up"
            )
        if shape == (want[0],):
            return f"returned [B], here {[*shape]}; return x[:, None] * batch.mask, {wanted}"
        if shape == (want[0], 1):
            return (
                f"returned [B, 1], one number for each sample; declare per='sample', or return "
                f"{wanted}"
            )
        return f"returned {[*shape]}; return {wanted}"

    def _may_be_of_samples(self, part: Callable) -> bool:
        return self.of_samples or facts_of(part).per != "step"

    def _of_values(self, value: Tensor, mask: Tensor, learns: bool) -> str | None:
        if value.dtype not in WIDE:
            return f"returned {value.dtype}; return float32 or float64"
        if self.learns and learns and not value.requires_grad:
            return "has no gradient; leave out .detach(), .item() and torch.no_grad() on batch.logp"
        if not self.learns and value.requires_grad:
            return "has a gradient, which it must not have; add .detach()"
        broken = int((mask & ~value.isfinite()).sum()) if self.finite else 0
        return f"returned {broken} values that are not finite" if broken else None


LOSS = Output(kind="loss", learns=True)
CORRECTION = Output(kind="correction", of_samples=True)
OLD_POLICY = Output(kind="old policy")
ADVANTAGE = Output(kind="advantage", finite=True)
RETURNS = Output(kind="returns", finite=True)
WEIGHTS = Output(kind="weights", finite=True)
