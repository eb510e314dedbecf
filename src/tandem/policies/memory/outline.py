"""Networks without numbers: on torch's meta device tensors have shapes and nothing else.

A pass over them, with the layers, adapters, recomputation and chunks of the real one, makes the
tensors that the real one makes, and they are counted.
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
    """How a network computes."""

    dtype: str
    gradient_checkpointing: bool


class Outline:
    """The networks of a policy that was not loaded, adapters and critic too."""

    model: nn.Module  # with its adapters
    base: list[nn.Parameter]  # of the model, without its adapters
    critic: nn.Module | None
    teachers: list[nn.Module]
    reads_reference: bool  # the base, where there are adapters
    asks_reference: Phase = "reference"  # when it is asked

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
    def packed(self) -> dict[nn.Parameter, int]:
        """Bytes of the weights of a quantised base."""
        return packed_sizes(self.networks, self.quantization)

    def size_of(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of tensors, some of which may be packed. Of any shape [...]."""
        return sum(self.packed.get(x, x.nbytes) for x in tensors)

    @property
    def adapters(self) -> list[nn.Parameter]:
        return [p for name, p in self.model.named_parameters() if ".lora_" in name]

    @property
    def has_reference(self) -> bool:
        """Whether a frozen copy is one of its own."""
        return self.reads_reference and self.lora is None

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model] if self.critic is None else [self.model, self.critic]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for network in self.networks for p in network.parameters()]

    @property
    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.parameters if p.requires_grad]

    @property
    def held(self) -> list[Tensor]:
        """What is there before a pass begins."""
        return [*self.parameters, *(x for own in self.networks for x in own.buffers())]

    def is_cast(self, parameter: nn.Parameter) -> bool:
        """Whether autocast computes with a copy."""
        return parameter.dtype == torch.float32 and parameter.ndim > 1

    def narrow(self) -> None:
        """Compute in bfloat16, as autocast does, which knows no meta device."""
        self.model.to(torch.bfloat16)

    def peak_of_update(self, loss: Callable[[], Tensor]) -> int:
        """Bytes that forward and backward hold at most, beside weights and their gradients."""
        learnt = self.trained
        for parameter in learnt:
            parameter.grad = torch.empty_like(parameter)
        with Peak([*self.held, *(p.grad for p in learnt)]) as peak:
            loss().backward()
        for parameter in learnt:
            parameter.grad = None
        return peak.most
