"""Other states of the trained weights, by name: an average for evaluation, an older policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LIVE, EMA = "live", "ema"
COUNT = "count"
Decay = Callable[[int], float]  # number of updates so far -> what is kept


class Snapshots:
    """float32 copies of what is trained, whatever its dtype: a bfloat16 average stands still."""

    def __init__(self, trainable: Mapping[str, nn.Parameter]) -> None:
        self.live = trainable
        self.weights: dict[str, dict[str, Tensor]] = {}
        self.counts: dict[str, int] = {}

    @torch.no_grad()
    def blend(self, name: str, decay: Decay) -> None:
        """snapshot <- decay snapshot + (1 - decay) live; one that is new starts as a copy."""
        if name not in self.weights:
            self.begin(name)
        keep = decay(self.counts[name])
        for key, kept in self.beside(name).items():
            kept.lerp_(self.live[key].detach().float(), 1 - keep)
        self.counts[name] += 1

    def begin(self, name: str) -> None:
        """A snapshot that is the live weights as they are now."""
        self.weights[name] = {key: p.detach().float().clone() for key, p in self.live.items()}
        self.counts[name] = 0

    def beside(self, name: str) -> dict[str, Tensor]:
        """The snapshot, where the live weights are by now: whoever moves those knows of no copy."""
        kept = self.weights[name]
        self.weights[name] = {key: x.to(self.live[key].device) for key, x in kept.items()}
        return self.weights[name]

    @contextmanager
    def under(self, name: str) -> Iterator[None]:
        """The network with the weights of a snapshot in it, for passes without gradient."""
        if name == LIVE:
            yield
            return
        if name not in self.weights:
            raise ValueError(f"no snapshot is called {name!r}; there are {sorted(self.weights)}")
        held = {key: p.detach().clone() for key, p in self.live.items()}
        self._put(self.beside(name))
        try:
            yield
        finally:
            self._put(held)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for key, parameter in self.live.items():
            parameter.copy_(weights[key])

    def state(self) -> dict[str, Tensor]:
        """snapshot/weight -> tensor, and snapshot/count."""
        counts = {f"{name}/{COUNT}": torch.tensor(n) for name, n in self.counts.items()}
        weights = {
            f"{name}/{key}": x for name, kept in self.weights.items() for key, x in kept.items()
        }
        return counts | weights

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.weights, self.counts = {}, {}
        for path, value in state.items():
            name, key = path.split("/", 1)
            if key == COUNT:
                self.counts[name] = int(value)
            else:
                device = self.live[key].device
                self.weights.setdefault(name, {})[key] = value.to(device).clone()
