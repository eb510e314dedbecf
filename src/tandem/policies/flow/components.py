"""The networks of a pipeline that are trained together, by the names of their folders."""

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
    """Networks by the names of their folders: transformers and trained encoders."""

    def __init__(
        self, transformers: Mapping[str, nn.Module], readers: Mapping[str, nn.Module] = NONE
    ) -> None:
        super().__init__({**transformers, **readers})
        self.readers = tuple(readers)


def components(network: nn.Module) -> dict[str, nn.Module]:
    """The networks of a policy by name: a single transformer, or several networks."""
    return dict(network.items()) if isinstance(network, Components) else {TRANSFORMER: network}


def readers_of(network: nn.Module) -> tuple[str, ...]:
    """The names of the trained encoders of a policy; a single transformer has none."""
    return network.readers if isinstance(network, Components) else ()


def painter_of(network: nn.Module) -> nn.Module:
    """The network that predicts velocities: one or several transformers."""
    readers = readers_of(network)
    return join({name: x for name, x in components(network).items() if name not in readers})


def join(parts: Mapping[str, nn.Module]) -> nn.Module:
    """Several networks as one; a single one stays as it is."""
    return Components(parts) if len(parts) > 1 else next(iter(parts.values()))


@runtime_checkable
class HasReaders(Protocol):
    """An adapter whose prompt encoders can be trained with the transformer."""

    def component(self, name: str, dtype: torch.dtype | None) -> nn.Module:
        """The encoder of that name. Raises ValueError if there is none."""

    def read(self, network: Components, condition: Condition) -> Condition:
        """The transformer's condition, from the encoders in `network`, with gradient."""


def choose_trained(
    network: nn.Module, wanted: Sequence[str] | None, adapter: object, dtype: torch.dtype | None
) -> nn.Module:
    """The networks of a policy, with all but the wanted ones frozen; None: train the transformers.

    Raises ValueError for an unknown name.
    """
    if wanted is None:
        return network
    own = components(network)
    others = [name for name in wanted if name not in own]
    if not wanted or (others and not isinstance(adapter, HasReaders)):
        raise ValueError(
            f"model.target_components={[*wanted]}: this model can only train {', '.join(own)}; "
            "choose at least one of them and no others"
        )
    for name, part in own.items():
        if name not in wanted:
            part.requires_grad_(False)
    if not others:
        return network  # as the adapter made it, which saves it
    return Components(own, {name: adapter.component(name, dtype) for name in others})


def by_noise_level(
    parts: tuple[nn.Module, nn.Module],
    sigma: Tensor,
    boundary: float,
    ask: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """The output of the first part for rows at or above a noise level, and of the second part for
    rows below: [N, ...], sigma [N]. `ask`: runs a part on the rows of these indices, [n] int64."""
    if sigma.is_meta:  # no values; both parts need the same memory
        return ask(parts[0], torch.arange(len(sigma)))
    above = is_above(sigma, boundary)
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


def is_above(sigma: Tensor, boundary: float) -> Tensor:
    """Whether levels are at or above a boundary, compared in thousandths as by diffusers: [N]."""
    return 1000 * sigma >= 1000 * boundary


def is_awaited(part: nn.Module) -> bool:
    """Whether other ranks wait to gather its weights, or the loss needs a gradient of them."""
    asks_gradient = torch.is_grad_enabled() and learns(part)
    return asks_gradient or any(map(distributed.is_sharded, part.parameters()))


def learns(network: nn.Module) -> bool:
    """Whether any of its weights is trained."""
    return any(parameter.requires_grad for parameter in network.parameters())
