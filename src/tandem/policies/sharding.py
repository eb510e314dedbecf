"""Sharded weights: sent by the first rank to those that read none, gathered block by block for a
pass, and assembled for saving.

FSDP2, arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tandem import distributed
from tandem.policies.weights import Answer, Replicated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Sharded(Replicated):
    """Every rank holds a shard of each weight. Forward and backward gather block after block, so
    all ranks must make the same number of calls, or they deadlock."""

    def __init__(self, networks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        """Shard the parameters in place, and move them to the mesh's kind of device. If a rank has
        none yet, it first receives those of the first rank, block by block."""
        from torch.distributed.fsdp import FSDPModule, fully_shard  # takes most of a second

        self.root = _Together(networks)
        arriving = _Arriving(self.root, mesh.device_type)
        for block in [block for network in networks for block in blocks_of(network)]:
            arriving.fill(block)
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        arriving.fill(self.root)
        fully_shard(self.root, mesh=mesh, reshard_after_forward=True)
        self.cut = [part for part in self.root.modules() if isinstance(part, FSDPModule)]
        self.holds_all = False
        # FSDP takes the first module called as the root. Call it now: while everything is gathered,
        # a submodule may be called first.
        self(lambda: None)

    @property
    def lockstep(self) -> bool:
        return not self.holds_all

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        return self.root(call)

    @contextmanager
    def gather(self) -> Iterator[None]:
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
        return int(distributed.all_max(torch.tensor(wanted))) if self.lockstep else wanted


class _Together(nn.Module):
    """Networks whose submodules are called from outside, as one FSDP call. Weights outside of
    blocks stay gathered during the call, so submodules may share them."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, call: Callable[[], Answer]) -> Answer:
        return call()


class _Arriving:
    """Weights and buffers on their way from the first rank to ranks without any. They arrive just
    before they are sharded, so only the first rank ever holds more than a block in full."""

    def __init__(self, root: nn.Module, device: str) -> None:
        """`device`: the kind of device on which they arrive."""
        self.device = device
        is_empty = any(p.is_meta for p in root.parameters())
        awaited = distributed.all_max(torch.tensor(float(is_empty)))
        own = [*root.parameters(), *root.buffers()] if awaited else []
        # Those of the first rank: a checkpoint may keep some weights in a wider dtype.
        dtypes = distributed.all_gather_object([[x.dtype for x in own]])[0]
        self.dtypes: dict[Tensor, torch.dtype] = dict(zip(own, dtypes, strict=True))

    def fill(self, module: nn.Module) -> None:
        """Receive all of a module that has not arrived; tensors remain the same objects, so layers
        that share one still do."""
        for p in [p for p in module.parameters() if p in self.dtypes]:
            learns = p.requires_grad
            torch.utils.swap_tensors(p, nn.Parameter(self._receive(p), requires_grad=learns))
        for buffer in [buffer for buffer in module.buffers() if buffer in self.dtypes]:
            torch.utils.swap_tensors(buffer, self._receive(buffer))

    def _receive(self, own: Tensor) -> Tensor:
        """[...], of any shape."""
        dtype, here = self.dtypes.pop(own), self.device
        if distributed.rank() == 0:
            value = own.detach().to(here).contiguous()
        else:
            value = torch.empty(own.shape, dtype=dtype, device=here)
        dist.broadcast(value, 0)
        return value.detach()  # an object of its own, which can be swapped


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Units of gathering: the elements of the outermost module lists."""
    if isinstance(network, nn.ModuleList):
        return list(network)
    return [block for child in network.children() for block in blocks_of(child)]


@contextmanager
def assemble(*networks: nn.Module) -> Iterator[None]:
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
