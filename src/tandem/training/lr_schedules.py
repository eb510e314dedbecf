"""Learning rate schedules: the factor on the configured rate, as a function of the iteration."""

from __future__ import annotations

import math
from typing import Annotated

from tandem.contracts import at_least

Count = Annotated[int, at_least(0)]
Share = Annotated[float, at_least(0)]


def find_fault(factor: object, key: str = "optimizer.lr") -> str | None:
    """What a schedule, such as a plugin's, returned instead of a factor on a key; None: it is
    one."""
    if not isinstance(factor, int | float):
        return f"a {type(factor).__name__}; return a float, a factor on {key}"
    if not 0 <= factor < math.inf:
        return f"{factor}; return a finite factor on {key}, 0 or more"
    return None


def constant(iteration: int, iterations: int, *, warmup: Count = 0) -> float:
    """1, after a linear warm-up over `warmup` iterations that starts above 0."""
    return _risen(iteration, warmup)


def linear(iteration: int, iterations: int, *, warmup: Count = 0, final: Share = 0.0) -> float:
    """Linear decay from 1 after the warm-up to `final` in the last iteration.

    With final=0 it arrives at 0 after the last one, which would not train otherwise.
    """
    left = 1 - _decay_progress(iteration, iterations, warmup, final)
    return _risen(iteration, warmup) * (final + (1 - final) * left)


def cosine(iteration: int, iterations: int, *, warmup: Count = 0, final: Share = 0.0) -> float:
    """Cosine decay from 1 after the warm-up to `final` in the last iteration.

    With final=0 it arrives at 0 after the last one, which would not train otherwise.
    """
    left = (1 + math.cos(math.pi * _decay_progress(iteration, iterations, warmup, final))) / 2
    return _risen(iteration, warmup) * (final + (1 - final) * left)


def _risen(iteration: int, warmup: int) -> float:
    return min(1.0, (iteration + 1) / (warmup + 1))


def _decay_progress(iteration: int, iterations: int, warmup: int, final: float) -> float:
    """The completed share of the decay, in [0, 1]. Iterations count from 0."""
    last = iterations - 1 if final else iterations
    length = max(1, last - warmup)
    return min(1.0, max(0.0, (iteration - warmup) / length))
