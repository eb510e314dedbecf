"""The memory estimate of a transformer for text and pictures, computed without loading weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.memory import flow_estimate, language_estimate
from tandem.policies.memory.estimate import ADAPTERS, Part, Workload, count_by_dtype, size_of
from tandem.policies.memory.flow_outline import FlowOutline
from tandem.policies.memory.language_outline import LanguageOutline
from tandem.types import PICTURE, TEXT

if TYPE_CHECKING:
    from tandem.policies.chain.unified import UnifiedPolicy
    from tandem.policies.flow.policy import FlowPolicy
    from tandem.policies.request import Request


class PainterOutline(FlowOutline):
    """A flow model's additions to the language model's layers; a pass uses both."""

    def __init__(self, policy: FlowPolicy, request: Request, layers: nn.Module) -> None:
        super().__init__(policy, request)
        self.layers = layers
        self.base = self.parameters

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The additions only: the layers are counted with the language model."""
        shared = {*self.layers.parameters()}
        return [p for p in super().parameters if p not in shared]

    @property
    def held_tensors(self) -> list[Tensor]:
        layers = [*self.layers.parameters()]
        return [*super().held_tensors, *layers, *(p.grad for p in layers if p.grad is not None)]

    def peak_of_update(self, loss: Callable[[], Tensor]) -> int:
        learnt = [p for p in self.layers.parameters() if p.requires_grad]
        for parameter in learnt:
            parameter.grad = torch.empty_like(parameter)
        return super().peak_of_update(loss)


def footprint(policy: UnifiedPolicy, request: Request, work: Workload) -> dict[str, list[Part]]:
    """All parts of the estimate by segment, from configurations alone; the layers count as text."""
    writer = LanguageOutline(policy.text, policy.request_of(TEXT, request))
    layers = writer.model.get_decoder()
    policy.picture.adapter.share(layers, None)
    painter = PainterOutline(policy.picture, policy.request_of(PICTURE, request), layers)
    own = {TEXT: [p for p in writer.base if p not in {*layers.parameters()}], PICTURE: painter.base}
    for name in request.frozen:
        for parameter in own[name]:
            parameter.requires_grad_(False)
    shared = [*layers.parameters()]
    # Before the estimates narrow them.
    size, says = size_of(shared), f"a frozen copy of the layers, {count_by_dtype(shared)}"
    parts = {
        TEXT: language_estimate.of_outline(writer, work),
        PICTURE: flow_estimate.of_outline(painter, work),
    }
    if painter.has_reference and not writer.has_reference:
        copied = Part(name="layers", size=size, says=says, lower=ADAPTERS, shared=True)
        parts[PICTURE].append(copied)
    return parts
