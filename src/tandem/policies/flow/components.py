"""Networks of one pipeline that learn together, by the names of their folders."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tandem import distributed

TRANSFORMER = "transformer"


class Components(nn.ModuleDict):
    """Networks by the names of their folders."""


def components(network: nn.Module) -> dict[str, nn.Module]:
    """The networks that a policy holds: a transformer alone, or several."""
    return dict(network.items()) if isinstance(network, Components) else {TRANSFORMER: network}


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
    """Whether other ranks wait for its weights in this pass, or for its gradient after it."""
    learns = torch.is_grad_enabled() and distributed.world_size() > 1
    return learns or any(map(distributed.is_sharded, part.parameters()))
