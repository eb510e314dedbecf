"""Weights of the last iterations, which sample in a run with staleness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tandem import distributed

Weights = Mapping[str, Tensor]


def copy_weights(live: Weights) -> Weights:
    """A copy of the current tensors. Of any shape [...]."""
    return {name: x.detach().clone() for name, x in live.items()}


@torch.no_grad()
def put(live: Weights, kept: Weights) -> None:
    """Copy `kept` into the live tensors. Of any shape [...]."""
    for name, x in live.items():
        x.copy_(kept[name])


@contextmanager
def swap_weights(live: Weights, other: Weights) -> Iterator[None]:
    """A context in which the live tensors hold `other`. Of any shape [...]."""
    own = copy_weights(live)
    put(live, other)
    try:
        yield
    finally:
        put(live, own)


class LaggedWeights:
    """Copies of the sampled weights, one for each of the last staleness + 1 iterations.

    The samples of iteration s come from the weights at the start of iteration
    max(s - staleness, 0). At staleness 0 nothing is copied.
    """

    def __init__(self, live: Callable[[], Weights], *, staleness: int = 0) -> None:
        """live: the tensors that sample and are trained. Of any shape [...]."""
        self.live, self.staleness = live, staleness
        self.versions: dict[int, Weights] = {}  # by the iteration at whose start they were copied

    @contextmanager
    def use(self, iteration: int) -> Iterator[int]:
        """A context in which the weights that sample this iteration replace the live ones, which
        are those at its start; yields their age in iterations."""
        if not self.staleness:
            yield 0
            return
        if iteration not in self.versions:
            self.versions[iteration] = copy_weights(self.live())
        self.forget(iteration)
        version = min(self.versions)
        try:
            put(self.live(), self.versions[version])
            yield iteration - version
        finally:
            put(self.live(), self.versions[iteration])

    def forget(self, iteration: int) -> None:
        """Drop copies that no iteration from this one on needs."""
        oldest = iteration - self.staleness
        self.versions = {v: kept for v, kept in self.versions.items() if v >= oldest}

    def state(self) -> dict[str, Tensor]:
        """lagged/VERSION/NAME -> tensor. Of any shape [...]."""
        return {
            f"lagged/{version}/{name}": x
            for version, kept in self.versions.items()
            for name, x in kept.items()
        }

    def load_state(self, state: Weights) -> None:
        """Restore what `state` returned; other keys are ignored.

        Of any shape [...].
        """
        live, self.versions = self.live(), {}
        for key in [key for key in state if key.startswith("lagged/") and self.staleness]:
            _, version, name = key.split("/", 2)
            here = state[key].to(live[name].device).clone()
            kept = self.versions.setdefault(int(version), {})
            kept[name] = distributed.shard_like(live[name], here)
