"""The weights of a flow policy: live, frozen as a reference, as other snapshots, and on disk."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.dynamics.decays import EmaSchedule
from tandem.hub import align
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.critic import FlowCritic, new_critic
from tandem.policies.flow.lora import add_adapters, plain_copy, without_adapters
from tandem.policies.flow.records import LIVE
from tandem.policies.flow.teachers import TeacherConfig, TeacherModels
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.language.pretrained import Numerics
from tandem.policies.lora import Lora
from tandem.policies.weights import (
    Precision,
    Replicated,
    Sharded,
    all_gathered,
    assembled,
    move,
    named_parameters,
    parameter_groups,
    warn_of_rounding,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}


COUNTERS = ("update", "iteration")


class FlowModel(nn.Module):
    """One transformer. It is not there before `load`."""

    def __init__(self, adapter: Adapter, numerics: Numerics, lora: Lora | None) -> None:
        super().__init__()
        self.adapter, self.numerics, self.lora = adapter, numerics, lora
        self.frozen: VelocityModel | None = None
        self.critic: FlowCritic | None = None
        self.weights_of_critic = Replicated()
        self.teachers: TeacherModels | None = None

    def load(
        self,
        path: str | None,
        *,
        seed: int,
        with_reference: bool,
        with_critic: bool,
        following: Mapping[str, EmaSchedule],
        teachers: TeacherConfig | None,
        precision: Precision,
    ) -> None:
        """`seed`: of new adapters. A frozen copy is made only if there are none. `following`: the
        snapshots that somebody reads."""
        network = self.adapter.load(path, DTYPES[self.numerics.dtype])
        self.network = prepare(network, recompute=self.numerics.gradient_checkpointing)
        if self.lora is not None:
            add_adapters(self.network, self.lora, own=self.adapter.lora_targets, seed=seed)
        if with_critic:
            self.critic = new_critic(self.adapter.reader(self.network)[1], seed=seed)
        compiled = self.numerics.torch_compile and not with_critic
        own = {"precision": precision, "compiled": compiled}
        self.field = VelocityModel(self.network, self.adapter, **own)
        self.snapshots = Snapshots(self.trainable(), following)
        if teachers is not None:
            self.teachers = teachers.load(self.adapter, DTYPES[self.numerics.dtype], precision)
        if with_reference and self.lora is None:
            copied = copy.deepcopy(self.network).requires_grad_(False)
            self.frozen = VelocityModel(copied, self.adapter, **own)
        warn_of_rounding(self.trainable())

    def shard(self, mesh: DeviceMesh) -> None:
        """All but teachers, of whom each rank asks those of its own prompts."""
        self.field.weights = Sharded([self.network], mesh)
        if self.frozen is not None:
            self.frozen.weights = Sharded([self.frozen.network], mesh)
        if self.critic is not None:
            self.weights_of_critic = Sharded([self.critic], mesh)
        self.snapshots = Snapshots(self.trainable(), self.snapshots.following)

    def gathered(self, *, with_reference: bool = False) -> AbstractContextManager[None]:
        """With all weights on every rank, for passes without gradient at each rank's own pace."""
        copies = [] if self.frozen is None or not with_reference else [self.frozen.weights]
        return all_gathered(self.field.weights, self.weights_of_critic, *copies)

    def values(self, states: Tensor) -> Tensor:
        """What the critic says of hidden states: [N, H] -> [N]."""
        return self.weights_of_critic(lambda: self.critic(states))

    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""
        return named_parameters(self.network, self.critic)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """What an optimiser treats alike."""
        return parameter_groups(self.network, self.critic)

    @contextmanager
    def reference(self) -> Iterator[VelocityModel]:
        """The policy as it was loaded: without its adapters, or a frozen copy."""
        if self.lora is not None:
            with without_adapters(self.network):
                yield self.field
            return
        assert self.frozen is not None, "load() was not told that a reference is needed"
        move(self.frozen.network, next(self.network.parameters()).device)
        alone = not self.field.weights.paced
        with self.frozen.weights.gathered() if alone else nullcontext():
            yield self.frozen

    def save(self, folder: Path) -> None:
        """In the layout of diffusers; adapters are merged, and lie beside it in `lora`."""
        with assembled(self.network):
            if not distributed.is_first():
                return
            if self.lora is None:
                self.adapter.save(self.network, folder)
                return
            self.adapter.save(plain_copy(self.network), folder)
            self.adapter.save_lora(self.network, folder / "lora")


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
        """The snapshot, where the live weights are by now: whoever moves those knows of no copy.

        Of any shape [...].
        """
        kept = self.weights[name]
        self.weights[name] = {key: x.to(self.live[key].device) for key, x in kept.items()}
        return self.weights[name]

    def is_live(self, name: str) -> bool:
        """Whether its weights are the live ones, so that nobody has to be asked twice."""
        return name == LIVE or name in self.current

    @contextmanager
    def under(self, name: str) -> Iterator[None]:
        """The network with the weights of a snapshot in it, for passes without gradient.

        A graph of the live weights does not survive it: ask snapshots first. Raises ValueError for
        a name that there is not.
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
        iterations there were.

        Of any shape [...].
        """
        counts = {event: torch.tensor(count) for event, count in self.counts.items()}
        live = {f"{name}/": torch.tensor(name in self.current) for name in self.weights}
        weights = {
            f"{name}/{key}": x for name, kept in self.weights.items() for key, x in kept.items()
        }
        return counts | live | weights

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Of any shape [...]."""
        self.counts = {event: int(state[event]) for event in COUNTERS}
        self.current = {name for name in self.weights if bool(state[f"{name}/"])}
        for name, kept in self.weights.items():
            for key in kept:
                value = state[f"{name}/{key}"].to(self.live[key].device).clone()
                kept[key] = distributed.shard_like(self.live[key], value)


def prepare(network: nn.Module, *, recompute: bool) -> nn.Module:
    """No dropout, eval mode, and recomputed activations where they are asked for."""
    align(network)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if recompute:
        network.enable_gradient_checkpointing()
    return network.eval()
