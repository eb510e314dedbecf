"""The outline of a flow policy: its networks on the meta device, built from configurations."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.adapter import Autoencoding, Outlined
from tandem.policies.flow.components import (
    choose_trained,
    components,
    learns,
    painter_of,
    readers_of,
)
from tandem.policies.flow.critic import new_critic
from tandem.policies.flow.embeddings import PromptEmbedding
from tandem.policies.flow.lora import add_adapters
from tandem.policies.flow.model import DTYPES, prepare
from tandem.policies.flow.snapshots import KeptWeights
from tandem.policies.flow.teachers import adapter_of_teacher
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.memory.outline import Outline
from tandem.policies.memory.tracker import Peak, fuse_torch_attention
from tandem.policies.teachers import weights_of
from tandem.policies.weights import FULL

if TYPE_CHECKING:
    from tandem.policies.flow.policy import FlowPolicy
    from tandem.policies.request import Request


class FlowOutline(Outline):
    """The networks of a flow policy, without weights."""

    asks_reference = "update"

    def __init__(self, policy: FlowPolicy, request: Request) -> None:
        """Reads configurations only.

        Raises ValueError if there are none, or if the adapter has no outline.
        """
        model = policy.model
        super().__init__(request, model.numerics, model.lora, model.quantization)
        self.policy = policy
        self.adapter = copy.copy(policy.adapter)
        if not isinstance(self.adapter, Outlined):
            raise ValueError(
                f"estimate=true: {type(self.adapter).__name__} has no outline; implement "
                "tandem.policies.flow.adapter.Outlined"
            )
        if isinstance(self.adapter, Autoencoding):
            self.adapter.save_memory(frozenset(), policy.decoding)  # meta has no offloading
        dtype = DTYPES[self.numerics.dtype]
        network = self.adapter.outline(policy.path, dtype)
        network = choose_trained(network, policy.model.targets, self.adapter, dtype)
        self.model = prepare(network, self.numerics)
        self.base = list(self.model.parameters())
        if self.lora is not None:
            add_adapters(self.model, self.lora, own=self.adapter.lora_targets, seed=0)
        self.kept = KeptWeights.of(request, policy.ema)
        self.reads_reference = self.kept.reference
        self.teachers = self._teachers()
        self.critic = None
        if "values" in request.needs:
            reader = self.adapter.reader(painter_of(self.model))
            self.critic = new_critic(reader[1], seed=0).to("meta")
        self.learners = {name: copy.deepcopy(self.model) for name in request.networks}

    def _teachers(self) -> list[nn.Module]:
        """The networks of the teachers, one per source."""
        asked = self.request.teachers
        folders = () if asked is None else asked.folders.values()
        dtype = DTYPES[self.numerics.dtype]
        return [
            adapter_of_teacher(self.adapter).outline(str(weights_of(x)), dtype) for x in folders
        ]

    def reference_weights(self, *, shards: bool) -> list[Tensor]:
        """Networks that do not learn serve both, unless the copy is moved or sharded."""
        every = super().reference_weights(shards=shards)
        if shards or "reference" in self.request.offload:
            return every
        frozen = [part for part in components(self.model).values() if not learns(part)]
        alike = {x for part in frozen for x in (*part.parameters(), *part.buffers())}
        return [x for x in every if x not in alike]

    @property
    def networks(self) -> list[nn.Module]:
        return [*super().networks, *self.learners.values()]

    def narrow(self) -> None:
        for network in (self.model, *self.learners.values()):
            network.to(torch.bfloat16)

    @property
    def latent(self) -> int:
        """Elements of one latent."""
        return torch.Size(self.adapter.latent_shape).numel()

    def peak_of_training(self, rows: int, *, scale: float) -> int:
        """Peak bytes of forward and backward of `rows` points, without weights and their
        gradients."""

        def loss() -> Tensor:
            own = self._velocity(rows, scale, with_values=self.critic is not None)
            beside = (self._velocity(rows, 1.0, of=x) for x in self.learners.values())
            return sum(beside, own)

        with fuse_torch_attention():
            return self.peak_of_update(loss)

    def peak_of_denoising(self, rows: int, *, scale: float) -> int:
        with torch.no_grad(), fuse_torch_attention(), Peak(self.held_tensors) as peak:
            self._velocity(rows, scale)
        return peak.most

    def peak_of_decoding(self, rows: int) -> int:
        x0 = torch.empty(rows, *self.adapter.latent_shape, device="meta")
        with fuse_torch_attention(), Peak([*self.held_tensors, x0]) as peak:
            self.adapter.pixels(x0)
        return peak.most

    def other_networks(self, name: str) -> list[nn.Module]:
        """Networks other than the transformer."""
        return list(self.adapter.other_networks().get(name, ()))

    @property
    def held_tensors(self) -> list[Tensor]:
        decoders = self.other_networks("VAE")
        return [
            *super().held_tensors,
            *(x for own in decoders for x in (*own.parameters(), *own.buffers())),
        ]

    def _velocity(
        self, rows: int, scale: float, *, with_values: bool = False, of: nn.Module | None = None
    ) -> Tensor:
        field = VelocityModel(of or self.model, self.adapter, precision=FULL)
        x = torch.empty(rows, *self.adapter.latent_shape, device="meta")
        blank = self.adapter.blank(rows)
        if readers_of(self.model):  # the encoders' gradient passes through all of the transformer
            blank = {name: x.requires_grad_(x.is_floating_point()) for name, x in blank.items()}
        prompts = PromptEmbedding(prompted=blank, unprompted=blank if scale > 1 else None)
        at = x, torch.empty(rows, device="meta"), prompts
        if not with_values:
            return field(*at, scale=scale).sum()
        velocity, states = field.with_states(*at, scale=scale)
        return velocity.sum() + self.critic(states).sum()
