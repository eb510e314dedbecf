"""Other states of the trained weights, by name: an average for evaluation, an older policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.dynamics.decays import EmaSchedule

LIVE, EMA = "live", "ema"
COUNTERS = ("update", "iteration")


class Snapshots:
    """float32 copies of what is trained, whatever its dtype: a bfloat16 average stands still.

    snapshot <- decay snapshot + (1 - decay) live, as often as each is to follow.
    """

    def __init__(
        self, trainable: Mapping[str, nn.Parameter], following: Mapping[str, EmaSchedule]
    ) -> None:
        self.live, self.following = trainable, following
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.weights = {name: self._copied() for name in following}
        self.current = set(following)  # those that are the live weights
        self.placed = LIVE  # whose weights the network has

    def follow(self, event: str) -> None:
        """An "update" was made, or an "iteration" is over."""
        if event == "update":
            self.current.clear()
        for name, following in self.following.items():
            if following.every == event:
                self._blend(name, following.decay(self.counts[following.counts]))
        self.counts[event] += 1

    @torch.no_grad()
    def _blend(self, name: str, keep: float) -> None:
        for key, kept in self.beside(name).items():
            kept.lerp_(self.live[key].detach().float(), 1 - keep)
        if keep == 0:
            self.current.add(name)

    def _copied(self) -> dict[str, Tensor]:
        return {key: p.detach().float().clone() for key, p in self.live.items()}

    def beside(self, name: str) -> dict[str, Tensor]:
        """The snapshot, where the live weights are by now: whoever moves those knows of no copy."""
        kept = self.weights[name]
        self.weights[name] = {key: x.to(self.live[key].device) for key, x in kept.items()}
        return self.weights[name]

    def is_live(self, name: str) -> bool:
        """Whether its weights are the live ones, so that nobody has to be asked twice."""
        return name == LIVE or name in self.current

    @contextmanager
    def under(self, name: str) -> Iterator[None]:
        """The network with the weights of a snapshot in it, for passes without gradient.

        A graph of the live weights does not survive it: ask snapshots first.
        """
        if name != LIVE and name not in self.weights:
            raise ValueError(f"no snapshot is called {name!r}; there are {sorted(self.weights)}")
        assert self.placed in (LIVE, name), f"{name!r} is asked for within {self.placed!r}"
        if self.is_live(name) or name == self.placed:
            yield
            return
        held = {key: p.detach().clone() for key, p in self.live.items()}
        self._put(self.beside(name))
        self.placed = name
        try:
            yield
        finally:
            self._put(held)
            self.placed = LIVE

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for key, parameter in self.live.items():
            parameter.copy_(weights[key])

    def state(self) -> dict[str, Tensor]:
        """snapshot/weight -> tensor, which of them are the live weights, and how many updates and
        iterations there were."""
        counts = {event: torch.tensor(count) for event, count in self.counts.items()}
        live = {f"{name}/": torch.tensor(name in self.current) for name in self.weights}
        weights = {
            f"{name}/{key}": x for name, kept in self.weights.items() for key, x in kept.items()
        }
        return counts | live | weights

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.counts = {event: int(state[event]) for event in COUNTERS}
        self.current = {name for name in self.weights if bool(state[f"{name}/"])}
        for name, kept in self.weights.items():
            for key in kept:
                value = state[f"{name}/{key}"].to(self.live[key].device).clone()
                kept[key] = distributed.cut_like(self.live[key], value)
