"""Sharded weights: gathered block by block for a pass, and assembled for saving.

FSDP2, arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem import distributed
from tandem.policies.weights import Answer, Replicated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Sharded(Replicated):
    """Every rank holds a shard of each weight. Forward and backward gather block after block, so
    all ranks must make the same number of calls, or they deadlock."""

    def __init__(self, networks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        """Shard the parameters in place, and move them to the mesh's kind of device."""
        from torch.distributed.fsdp import FSDPModule, fully_shard  # takes most of a second

        self.root = _Together(networks)
        for block in [block for network in networks for block in blocks_of(network)]:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(self.root, mesh=mesh, reshard_after_forward=True)
        self.cut = [part for part in self.root.modules() if isinstance(part, FSDPModule)]
        self.holds_all = False
        # FSDP takes the first module called as the root. Call it now: while everything is gathered,
        # a submodule may be called first.
        self(lambda: None)

    @property
    def paced(self) -> bool:
        return not self.holds_all

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        return self.root(call)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context with all weights on every rank, for unsynchronised passes without gradient."""
        self._gather()
        try:
            yield
        finally:
            self._part()

    def _gather(self) -> None:
        for part in self.cut:
            part.unshard()
            part.set_reshard_after_forward(False, recurse=False)
        self.holds_all = True

    def _part(self) -> None:
        for part in self.cut:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
        self.holds_all = False

    def passes(self, wanted: int) -> int:
        """The maximum over ranks, unless everything is gathered."""
        return int(distributed.all_max(torch.tensor(wanted))) if self.paced else wanted


class _Together(nn.Module):
    """Networks whose submodules are called from outside, as one FSDP call. Weights outside of
    blocks stay gathered during the call, so submodules may share them."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, call: Callable[[], Answer]) -> Answer:
        return call()


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Units of gathering: the elements of the outermost module lists."""
    if isinstance(network, nn.ModuleList):
        return list(network)
    return [block for child in network.children() for block in blocks_of(child)]


@contextmanager
def assembled(*networks: nn.Module) -> Iterator[None]:
    """A context with plain weights in place of shards, for saving: on the CPU of the first rank.

    All ranks synchronise here. Weights that two layers share stay shared.
    """
    whole: dict[nn.Parameter, nn.Parameter] = {}
    held = []
    for module in [module for network in networks for module in network.modules()]:
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if not distributed.is_sharded(parameter):
                continue
            if parameter not in whole:
                whole[parameter] = _whole(parameter)
            held.append((module, name, parameter))
    try:
        for module, name, parameter in held:
            module.register_parameter(name, whole[parameter])
        yield
    finally:
        for module, name, parameter in held:
            module.register_parameter(name, parameter)


def _whole(parameter: nn.Parameter) -> nn.Parameter:
    found = distributed.gather_on_first(parameter.detach())
    if found is None:
        return parameter  # only the first rank writes
    return nn.Parameter(found, requires_grad=parameter.requires_grad)
