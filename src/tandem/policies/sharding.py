"""Weights that are cut over ranks: gathered for a pass block by block, and whole to be written.

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
    """Every rank has a part of each weight. A call gathers block after block, and so does its
    backward: all ranks make equally many, or wait for ever."""

    def __init__(self, networks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        """Cuts the parameters in place, and moves them to the mesh's kind of device."""
        from torch.distributed.fsdp import FSDPModule, fully_shard  # takes most of a second

        self.root = _Together(networks)
        for block in [block for network in networks for block in blocks_of(network)]:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(self.root, mesh=mesh, reshard_after_forward=True)
        self.cut = [part for part in self.root.modules() if isinstance(part, FSDPModule)]
        self.holds_all = False
        # Whoever is called first counts as the root: pieces may be, while all is gathered.
        self(lambda: None)

    @property
    def paced(self) -> bool:
        return not self.holds_all

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        return self.root(call)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """With all weights on every rank, for passes without gradient at each rank's own pace."""
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
        """As many as the rank that has most to do, unless all is gathered."""
        return int(distributed.all_max(torch.tensor(wanted))) if self.paced else wanted


class _Together(nn.Module):
    """Networks whose pieces are called from outside, as one call. What is in no block is gathered
    for all of it, so pieces may share weights."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, call: Callable[[], Answer]) -> Answer:
        return call()


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """What is gathered piece by piece: the elements of the outermost lists of modules."""
    if isinstance(network, nn.ModuleList):
        return list(network)
    return [block for child in network.children() for block in blocks_of(child)]


@contextmanager
def assembled(*networks: nn.Module) -> Iterator[None]:
    """With plain weights in place of cut ones, to be written: on the first rank, on its CPU.

    All ranks meet here. Weights that two layers share stay one.
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
        return parameter  # nobody writes here
    return nn.Parameter(found, requires_grad=parameter.requires_grad)
