"""Memory of a rank under FSDP2: gathered weights in addition to shards.

During an all-gather a weight takes its bytes twice: in the communication buffer and as the tensor
that the pass uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from tandem.policies.sharding import blocks_of

AHEAD = 2  # blocks at once: the one in use, and the next one being gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Bytes of gathered weights, and of the gradients of trained ones."""

    whole: int  # all weights
    block: int  # the largest block
    outside: int  # weights outside blocks: embeddings and the head
    block_gradient: int
    outside_gradient: int

    @property
    def in_an_update(self) -> int:
        """Peak bytes in an update. Blocks are freed after use, other weights stay. Gradients are
        whole until they are reduce-scattered, those outside blocks last and with a buffer."""
        gradients = self.block_gradient + 2 * self.outside_gradient
        return self.outside + 2 * AHEAD * self.block + max(gradients, self.outside)

    @property
    def arriving(self) -> int:
        """Bytes of communication buffers when all weights are gathered and stay."""
        return max(AHEAD * self.block, self.block + self.outside)


def pieces_of(
    networks: Sequence[nn.Module], *, of: Callable[[nn.Parameter], bool] = lambda _: True
) -> Pieces:
    """The pieces of all weights that satisfy `of`; blocks are gathered one by one."""
    listed = [block for network in networks for block in blocks_of(network)]
    blocks = [[p for p in block.parameters() if of(p)] for block in listed]
    inside = {p for block in blocks for p in block}
    every = {p: None for network in networks for p in network.parameters() if of(p)}
    outside = [p for p in every if p not in inside]
    return Pieces(
        whole=_size(every),
        block=max(map(_size, blocks), default=0),
        outside=_size(outside),
        block_gradient=max((_size(p for p in b if p.requires_grad) for b in blocks), default=0),
        outside_gradient=_size(p for p in outside if p.requires_grad),
    )


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(x.nbytes for x in tensors)
