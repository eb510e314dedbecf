"""Networks of one pipeline that learn together, by the names of their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.policies.flow.records import Condition

TRANSFORMER = "transformer"
NONE: Mapping[str, nn.Module] = MappingProxyType({})


class Components(nn.ModuleDict):
    """Networks by the names of their folders: transformers, and encoders that learn."""

    def __init__(
        self, transformers: Mapping[str, nn.Module], readers: Mapping[str, nn.Module] = NONE
    ) -> None:
        super().__init__({**transformers, **readers})
        self.readers = tuple(readers)

    def painter(self) -> nn.Module:
        """The network that predicts velocities: one transformer, or several of them."""
        parts = {name: part for name, part in self.items() if name not in self.readers}
        return Components(parts) if len(parts) > 1 else next(iter(parts.values()))


def components(network: nn.Module) -> dict[str, nn.Module]:
    """The networks that a policy holds: a transformer alone, or several."""
    return dict(network.items()) if isinstance(network, Components) else {TRANSFORMER: network}


@runtime_checkable
class HasReaders(Protocol):
    """An adapter whose encoders of prompts may be trained with the transformer."""

    def component(self, name: str, dtype: torch.dtype | None) -> nn.Module:
        """An encoder by its name. Raises ValueError where there is no such."""

    def read(self, network: Components, condition: Condition) -> Condition:
        """What a transformer reads, said by the encoders among the components, with a gradient."""


def choose_trained(
    network: nn.Module, wanted: Sequence[str] | None, adapter: object, dtype: torch.dtype | None
) -> nn.Module:
    """The networks of a policy, of which those that are wanted learn; None: the transformers.

    Raises ValueError for a name that there is not.
    """
    if wanted is None:
        return network
    own = components(network)
    others = [name for name in wanted if name not in own]
    if not wanted or (others and not isinstance(adapter, HasReaders)):
        raise ValueError(
            f"model.target_components={[*wanted]}: give some of {', '.join(own)}, which are all "
            "that this model can train"
        )
    for name, part in own.items():
        if name not in wanted:
            part.requires_grad_(False)
    return Components(own, {name: adapter.component(name, dtype) for name in others})


def by_noise_level(
    parts: tuple[nn.Module, nn.Module],
    sigma: Tensor,
    boundary: float,
    ask: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """What the first part says of the rows at or above a noise level, and the second of those
    below: [N, ...], sigma [N]. `ask`: a part about the rows of those places, [n] int64."""
    if sigma.is_meta:  # it has no levels; both hold as much
        return ask(parts[0], torch.arange(len(sigma)))
    above = 1000 * sigma >= 1000 * boundary
    said = []
    for part, own in zip(parts, (above, ~above), strict=True):
        rows = own.nonzero().flatten()
        if len(rows):
            said.append((rows, ask(part, rows)))
        elif is_awaited(part):
            first = rows.new_zeros(1)
            said.append((first, 0 * ask(part, first)))
    whole = said[0][1].new_zeros(len(sigma), *said[0][1].shape[1:])
    for rows, velocity in said:
        whole = whole.index_add(0, rows, velocity)
    return whole


def is_awaited(part: nn.Module) -> bool:
    """Whether other ranks wait for its weights in this pass, or the loss for a gradient of them."""
    asks_gradient = torch.is_grad_enabled() and learns(part)
    return asks_gradient or any(map(distributed.is_sharded, part.parameters()))


def learns(network: nn.Module) -> bool:
    """Whether some of its weights are trained."""
    return any(parameter.requires_grad for parameter in network.parameters())
