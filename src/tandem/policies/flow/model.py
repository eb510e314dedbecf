"""The weights of a flow policy: live, frozen as a reference, as snapshots, and on disk."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.contracts.wrong_output import wrong_value
from tandem.hub import align
from tandem.policies.activations import tile_feed_forward
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.components import (
    choose_trained,
    components,
    learns,
    painter_of,
    readers_of,
)
from tandem.policies.flow.critic import FlowCritic, new_critic
from tandem.policies.flow.lora import add_adapters, plain_copy, without_adapters
from tandem.policies.flow.records import REFERENCE
from tandem.policies.flow.snapshots import KeptWeights, Snapshots
from tandem.policies.flow.teachers import LoadedVelocityTeachers, VelocityTeachers
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.language.pretrained import Numerics
from tandem.policies.lora import Lora
from tandem.policies.quantization import Quantization, quantize
from tandem.policies.sharding import Sharded, assemble
from tandem.policies.weights import (
    Precision,
    Replicated,
    disable_dropout,
    gather_all,
    lend,
    named_parameters,
    parameter_groups,
    select_prefix,
    warn_of_rounding,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}


class FlowModel(nn.Module):
    """The networks of a flow policy. They do not exist before `load`."""

    def __init__(
        self,
        adapter: Adapter,
        numerics: Numerics,
        lora: Lora | None,
        quantization: Quantization | None = None,
        targets: Sequence[str] | None = None,
    ) -> None:
        """`targets`: names of the networks that are trained; None: the transformers."""
        super().__init__()
        self.adapter, self.numerics = adapter, numerics
        self.lora, self.quantization = lora, quantization
        self.targets = targets
        self.readers: tuple[str, ...] = ()  # trained encoders
        self.offload: frozenset[str] = frozenset()
        self.frozen: VelocityModel | None = None
        self.critic: FlowCritic | None = None
        self.weights_of_critic = Replicated()
        self.teachers: LoadedVelocityTeachers | None = None
        # Networks that are trained beside it, by name, and averages of each.
        self.beside: dict[str, VelocityModel] = {}
        self.averages: dict[str, Snapshots] = {}
        self.learners = nn.ModuleDict()

    def load(
        self,
        path: str | None,
        *,
        seed: int,
        kept: KeptWeights,
        with_critic: bool,
        teachers: VelocityTeachers | None,
        precision: Precision,
    ) -> None:
        """`seed`: of new LoRA adapters. The reference is a frozen copy only without adapters."""
        network = self.read_weights(path, teachers)
        self.network = prepare(network, self.numerics)
        if self.lora is not None:
            add_adapters(self.network, self.lora, own=self.adapter.lora_targets, seed=seed)
        if self.quantization is not None:
            quantize(self.network, self.quantization)
        if with_critic:
            read = self.adapter.reader(painter_of(self.network))
            self.critic = new_critic(read[1], seed=seed)
        compiled = self.numerics.torch_compile and not with_critic
        own = {"precision": precision, "compiled": compiled}
        self.field = VelocityModel(self.network, self.adapter, **own)
        self.learners = nn.ModuleDict({name: copy.deepcopy(self.network) for name in kept.beside})
        for name, following in kept.beside.items():
            self.beside[name] = VelocityModel(self.learners[name], self.adapter, **own)
            self.averages[name] = Snapshots(named_parameters(self.learners[name], None), following)
        live = named_parameters(self.network, self.critic)
        self.snapshots = Snapshots(live, kept.following, kept.delays)
        if teachers is not None:
            self.teachers = teachers.load(self.adapter, DTYPES[self.numerics.dtype], precision)
        if kept.reference and self.lora is None:
            # Components that are not trained serve both, unless the copy moves by itself.
            alike = [] if "reference" in self.offload else components(self.network).values()
            kept_alike = {id(x): x for x in alike if not learns(x)}
            copied = copy.deepcopy(self.network, kept_alike).requires_grad_(False)
            self.frozen = VelocityModel(copied, self.adapter, **own)
        warn_of_rounding(self.trainable())

    def read_weights(self, path: str | None, teachers: VelocityTeachers | None) -> nn.Module:
        """The networks with the trained encoders. Raises ValueError if encoders are trained with
        LoRA, which covers transformers only, or with teachers, which have their own encoders."""
        dtype = DTYPES[self.numerics.dtype]
        network = self.adapter.load(path, dtype)
        if not isinstance(network, nn.Module):
            raise wrong_value(self.adapter.load, network, "the transformer, an nn.Module")
        network = choose_trained(network, self.targets, self.adapter, dtype)
        self.readers = readers_of(network)
        keys = {"model.lora": self.lora, "algorithm.teachers": teachers}
        given = [key for key, value in keys.items() if value is not None]
        if self.readers and given:
            raise ValueError(
                f"model.target_components={[*self.targets]} trains {', '.join(self.readers)}, "
                f"which {given[0]} does not support; set {given[0]}=null or leave them out"
            )
        return network

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard all networks but teachers, which each rank runs on its own prompts.

        Raises ValueError if encoders are trained: ranks run them at different times.
        """
        if self.readers:
            raise ValueError(
                f"trainer.strategy=fsdp2 with model.target_components={[*self.targets]}: encoders "
                "cannot be sharded; set trainer=ddp, or train transformers only"
            )
        shared = {*components(self.network).values()}
        if self.frozen is not None and shared & {*components(self.frozen.network).values()}:
            self.frozen = self.frozen.copy()  # no module can be sharded twice
        self.field.weights = Sharded([self.network], mesh)
        if self.frozen is not None:
            self.frozen.weights = Sharded([self.frozen.network], mesh)
        if self.critic is not None:
            self.weights_of_critic = Sharded([self.critic], mesh)
        for name, network in self.learners.items():
            self.beside[name].weights = Sharded([network], mesh)
            kept = self.averages[name].following
            self.averages[name] = Snapshots(named_parameters(network, None), kept)
        old, live = self.snapshots, named_parameters(self.network, self.critic)
        self.snapshots = Snapshots(live, old.following, old.delays)

    def gather(self, *, with_reference: bool = False) -> AbstractContextManager[None]:
        """All weights on every rank, for passes without gradient at each rank's own pace."""
        copies = [] if self.frozen is None or not with_reference else [self.frozen.weights]
        return gather_all(self.field.weights, self.weights_of_critic, *copies)

    def values(self, states: Tensor) -> Tensor:
        """The critic's values of hidden states: [N, H] -> [N]."""
        return self.weights_of_critic(lambda: self.critic(states))

    def trainable(self) -> dict[str, nn.Parameter]:
        """All trained parameters, by name."""
        return named_parameters(self.network, self.critic) | {
            f"{name}.{own}": p
            for name, network in self.learners.items()
            for own, p in named_parameters(network, None).items()
        }

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The trained parameters, by optimiser group."""
        own = {name: parameter_groups(x, None)["policy"] for name, x in self.learners.items()}
        return parameter_groups(self.network, self.critic) | own

    def state(self) -> dict[str, Tensor]:
        """The state of all snapshots; for networks beside the policy as NAME:snapshot/weight.

        Of any shape [...].
        """
        return self.snapshots.state() | {
            f"{name}:{key}": x
            for name, own in self.averages.items()
            for key, x in own.state().items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Of any shape [...]."""
        for name, own in self.averages.items():
            own.load_state(select_prefix(state, f"{name}:"))
        self.snapshots.load_state({key: x for key, x in state.items() if ":" not in key})

    @contextmanager
    def reference(self) -> Iterator[VelocityModel]:
        """The reference: the policy without adapters, a frozen copy, or the snapshot of the last
        renewal."""
        if REFERENCE in self.snapshots.following:
            with self.snapshots.use(REFERENCE):
                yield self.field
            return
        if self.lora is not None:
            with without_adapters(self.network):
                yield self.field
            return
        assert self.frozen is not None, "load() was not told that a reference is needed"
        device = next(self.network.parameters()).device
        alone = not self.field.weights.lockstep
        with (
            lend(self.frozen.network, device, returns="reference" in self.offload),
            gather_all(*([self.frozen.weights] if alone else [])),
        ):
            yield self.frozen

    def save(self, folder: Path) -> None:
        """Save in the layout of diffusers; LoRA adapters are merged and also saved in `lora`."""
        with assemble(self.network):
            if not distributed.is_first():
                return
            if self.lora is None:
                self.adapter.save(self.network, folder)
                return
            self.adapter.save(plain_copy(self.network), folder)
            self.adapter.save_lora(self.network, folder / "lora")


def prepare(network: nn.Module, numerics: Numerics) -> nn.Module:
    """Turn off dropout and set eval mode; turn on activation checkpointing and feed-forward tiling
    if configured."""
    align(network)
    disable_dropout(network)
    if numerics.gradient_checkpointing:
        readers = readers_of(network)
        for name, part in components(network).items():
            if name not in readers:
                part.enable_gradient_checkpointing()
    if numerics.mlp_tile is not None:
        for part in components(network).values():
            tile_feed_forward(part, numerics.mlp_tile)
    return network.eval()
