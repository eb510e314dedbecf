"""Weights of the last iterations, from which the samples of a run that lags come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tandem import distributed

Weights = Mapping[str, Tensor]


def copied(live: Weights) -> Weights:
    """What the tensors hold now. Of any shape [...]."""
    return {name: x.detach().clone() for name, x in live.items()}


@torch.no_grad()
def put(live: Weights, kept: Weights) -> None:
    """Let the tensors hold what a copy holds. Of any shape [...]."""
    for name, x in live.items():
        x.copy_(kept[name])


@contextmanager
def exchanged(live: Weights, other: Weights) -> Iterator[None]:
    """With what a copy holds in place of the live tensors. Of any shape [...]."""
    own = copied(live)
    put(live, other)
    try:
        yield
    finally:
        put(live, own)


class LaggedWeights:
    """Copies of what is sampled from, one of each of the last staleness + 1 iterations.

    The samples of iteration s come from the weights that iteration max(s - staleness, 0) began
    with. At staleness 0 nothing is copied.
    """

    def __init__(self, live: Callable[[], Weights], *, staleness: int = 0) -> None:
        """live: the tensors that are sampled from and trained. Of any shape [...]."""
        self.live, self.staleness = live, staleness
        self.versions: dict[int, Weights] = {}  # by the iteration that began with them

    @contextmanager
    def under(self, iteration: int) -> Iterator[int]:
        """With the weights that sample this iteration in place of the live ones, which are those
        that it began with; gives their age in iterations."""
        if not self.staleness:
            yield 0
            return
        if iteration not in self.versions:
            self.versions[iteration] = copied(self.live())
        self.forget(iteration)
        version = min(self.versions)
        try:
            put(self.live(), self.versions[version])
            yield iteration - version
        finally:
            put(self.live(), self.versions[iteration])

    def forget(self, iteration: int) -> None:
        """Keep what is needed from this iteration on."""
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
        """Put back what `state` gave, among other things that are left alone.

        Of any shape [...].
        """
        live, self.versions = self.live(), {}
        for key in [key for key in state if key.startswith("lagged/") and self.staleness]:
            _, version, name = key.split("/", 2)
            here = state[key].to(live[name].device).clone()
            kept = self.versions.setdefault(int(version), {})
            kept[name] = distributed.shard_like(live[name], here)
