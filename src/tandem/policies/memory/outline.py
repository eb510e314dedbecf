"""Outlines: networks on torch's meta device, where tensors have shapes but no values.

A pass over an outline, with the layers, adapters, recomputation and chunks of the real pass,
allocates the same tensors, and their bytes are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from tandem.policies.memory.tracker import Peak
from tandem.policies.quantization import Quantization, packed_sizes

if TYPE_CHECKING:
    from tandem.policies.lora import Lora
    from tandem.policies.memory.estimate import Phase
    from tandem.policies.request import Request


class Numerics(Protocol):
    """The numerical options of a network."""

    dtype: str
    gradient_checkpointing: bool


class Outline:
    """The networks of a policy, without weights, including adapters and critic."""

    model: nn.Module  # with its adapters
    base: list[nn.Parameter]  # of the model, without its adapters
    critic: nn.Module | None
    teachers: list[nn.Module]
    reads_reference: bool  # with LoRA the base is the reference
    asks_reference: Phase = "reference"  # the phase in which it is used

    def __init__(
        self,
        request: Request,
        numerics: Numerics,
        lora: Lora | None,
        quantization: Quantization | None,
    ) -> None:
        self.request, self.sampling = request, request.sampling
        self.numerics, self.lora = numerics, lora
        self.quantization = quantization

    @cached_property
    def packed_bytes(self) -> dict[nn.Parameter, int]:
        """Bytes of each weight of a quantised base."""
        return packed_sizes(self.networks, self.quantization)

    def size_of(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of tensors, some of which may be quantised. Of any shape [...]."""
        return sum(self.packed_bytes.get(x, x.nbytes) for x in tensors)

    @property
    def adapters(self) -> list[nn.Parameter]:
        return [p for name, p in self.model.named_parameters() if ".lora_" in name]

    @property
    def has_reference(self) -> bool:
        """Whether there is a frozen copy of the weights."""
        return self.reads_reference and self.lora is None

    def reference_weights(self, *, shards: bool) -> list[Tensor]:
        """The weights of a frozen copy."""
        return [*self.base, *self.model.buffers()]

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model] if self.critic is None else [self.model, self.critic]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for network in self.networks for p in network.parameters()]

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        return [p for p in self.parameters if p.requires_grad]

    @property
    def held_tensors(self) -> list[Tensor]:
        """The tensors that exist before a pass."""
        return [*self.parameters, *(x for own in self.networks for x in own.buffers())]

    def is_cast(self, parameter: nn.Parameter) -> bool:
        """Whether autocast makes a bfloat16 copy."""
        return parameter.dtype == torch.float32 and parameter.ndim > 1

    def narrow(self) -> None:
        """Compute in bfloat16, as under autocast, which does not support the meta device."""
        self.model.to(torch.bfloat16)

    def peak_of_update(self, loss: Callable[[], Tensor]) -> int:
        """Peak bytes of forward and backward, without weights and their gradients."""
        learnt = self.trained_parameters
        for parameter in learnt:
            parameter.grad = torch.empty_like(parameter)
        with Peak([*self.held_tensors, *(p.grad for p in learnt)]) as peak:
            loss().backward()
        for parameter in learnt:
            parameter.grad = None
        return peak.most
