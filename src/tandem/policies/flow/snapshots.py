"""Snapshots of a flow policy's weights: moving averages and older weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.dynamics.decays import Decay, EmaSchedule, constant
from tandem.policies.flow.records import EMA, LIVE, REFERENCE
from tandem.policies.lagged import swap_weights
from tandem.policies.request import Request
from tandem.types import OF_SNAPSHOTS

COUNTERS = ("update", "iteration")
NEW_REFERENCE = "new_reference"  # the reference may be renewed
OF_KL = frozenset({"kl_to_ref", "old_kl_to_ref"})
OF_REAL = frozenset({"real_x0", "ref_error", "of_prompt"})  # of distribution matching
OF_REFERENCE = OF_KL | OF_REAL | {"ref_logp", "ref_error"}


def reads_reference(needs: frozenset[str]) -> bool:
    """Whether the initial weights are needed as a reference that is never renewed."""
    return bool(needs & OF_REFERENCE) and NEW_REFERENCE not in needs


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeights:
    """The weights that a flow policy keeps beside the live ones, because they are needed."""

    reference: bool  # a frozen copy; in distribution matching teachers may replace it
    following: Mapping[str, EmaSchedule]  # the snapshots that are read, sampled from, or evaluated
    # Delay, in iterations, of a snapshot that samples. The loss sees the same delay, so it compares
    # with the policy that made the pictures.
    delays: Mapping[str, int]
    # The networks that are trained beside the transformer, and the snapshots of each.
    beside: Mapping[str, Mapping[str, EmaSchedule]]

    @classmethod
    def of(cls, request: Request, ema: Decay | None) -> KeptWeights:
        """`ema`: the decay of the average for evaluation; None: no average."""
        sampling = request.sampling
        read = {OF_SNAPSHOTS[name] for name in request.needs & OF_SNAPSHOTS.keys()}
        read.add(sampling.weights)
        kept = {} if request.networks else request.snapshots
        following = {name: schedule for name, schedule in kept.items() if name in read}
        if NEW_REFERENCE in request.needs:
            following[REFERENCE] = EmaSchedule(decay=partial(constant, decay=1.0), every="never")
        if ema is not None:
            following[EMA] = EmaSchedule(decay=ema)
        late = sampling.staleness and sampling.weights in following
        taught = request.query is not None and request.teachers is not None
        return cls(
            reference=reads_reference(request.needs) and not taught,
            following=following,
            delays={sampling.weights: sampling.staleness} if late else {},
            beside={name: own.snapshots for name, own in request.networks.items()},
        )


class Snapshots:
    """float32 copies of the trained weights; an average in bfloat16 would not move.

    snapshot <- decay snapshot + (1 - decay) live, at the event of its schedule. A snapshot with a
    delay is read as it was at the start of an iteration that many iterations ago.
    """

    def __init__(
        self,
        trainable: Mapping[str, nn.Parameter],
        following: Mapping[str, EmaSchedule],
        delays: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.live, self.following, self.delays = trainable, following, delays
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.weights = {name: self._copy_live() for name in following}
        # Snapshots with a delay at the start of the last iterations, oldest first.
        self.before = {name: [self._copy_live()] for name in delays if name in following}
        self.current = set(following)  # snapshots that equal the live weights
        self.placed = LIVE  # the snapshot whose weights are in the network

    def follow(self, event: str) -> None:
        """Update the snapshots after an "update" or an "iteration"."""
        if event == "update":
            self.current.clear()
        for name, following in self.following.items():
            if following.every == event:
                self._blend(name, following.decay(self.counts[following.counts]))
        if event == "iteration":
            for name, kept in self.before.items():
                kept.append({key: x.clone() for key, x in self.weights[name].items()})
                del kept[: -1 - self.delays[name]]
        self.counts[event] += 1

    def renew(self, name: str) -> None:
        """Set a snapshot to the live weights."""
        self._blend(name, 0.0)

    @torch.no_grad()
    def _blend(self, name: str, keep: float) -> None:
        self.weights[name] = self._to_live_devices(self.weights[name])
        for key, kept in self.weights[name].items():
            kept.lerp_(self.live[key].detach().float(), 1 - keep)
        if keep == 0:
            self.current.add(name)

    def _copy_live(self) -> dict[str, Tensor]:
        return {key: p.detach().float().clone() for key, p in self.live.items()}

    def on_live_device(self, name: str) -> dict[str, Tensor]:
        """The snapshot, on the current device of the live weights.

        Of any shape [...].
        """
        if name in self.before:
            return self._to_live_devices(self.before[name][0])
        self.weights[name] = self._to_live_devices(self.weights[name])
        return self.weights[name]

    def _to_live_devices(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {key: x.to(self.live[key].device) for key, x in kept.items()}

    def is_live(self, name: str) -> bool:
        """Whether a snapshot equals the live weights, so that one pass serves both."""
        return name == LIVE or (name in self.current and name not in self.before)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """The network with the weights of a snapshot, for passes without gradient.

        This invalidates a graph of the live weights, so run snapshots first. Raises ValueError for
        an unknown name.
        """
        if name != LIVE and name not in self.weights:
            raise ValueError(f"there is no snapshot {name!r}; choose one of {sorted(self.weights)}")
        assert self.placed in (LIVE, name), f"{name!r} is asked for within {self.placed!r}"
        if self.is_live(name) or name == self.placed:
            yield
            return
        with swap_weights(self.live, self.on_live_device(name)):
            self.placed = name
            try:
                yield
            finally:
                self.placed = LIVE

    def state(self) -> dict[str, Tensor]:
        """snapshot/weight -> tensor, which snapshots equal the live weights, and the counts of
        updates and iterations.

        Of any shape [...].
        """
        counts = {event: torch.tensor(count) for event, count in self.counts.items()}
        live = {f"{name}/": torch.tensor(name in self.current) for name in self.weights}
        weights = {
            f"{name}/{key}": x for name, kept in self.weights.items() for key, x in kept.items()
        }
        before = {
            f"{name}@{age}/{key}": x
            for name, older in self.before.items()
            for age, kept in enumerate(reversed(older))
            for key, x in kept.items()
        }
        return counts | live | weights | before

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Of any shape [...]."""
        self.counts = {event: int(state[event]) for event in COUNTERS}
        self.current = {name for name in self.weights if bool(state[f"{name}/"])}
        for name, kept in self.weights.items():
            kept.update(self._load_snapshot(state, name))
        known = {key.partition("/")[0] for key in state}
        for name in self.before:
            ages = reversed(range(self.delays[name] + 1))
            older = [f"{name}@{age}" for age in ages if f"{name}@{age}" in known]
            self.before[name] = [self._load_snapshot(state, kept) for kept in older or [name]]

    def _load_snapshot(self, state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
        here = {key: state[f"{name}/{key}"].to(x.device).clone() for key, x in self.live.items()}
        return {key: distributed.shard_like(self.live[key], x) for key, x in here.items()}
