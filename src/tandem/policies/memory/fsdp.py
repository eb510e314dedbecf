"""Memory of ranks under FSDP2: the shards, and what is gathered beside them.

A whole weight lies beside its part, and its bytes twice while they arrive: once as they came from
all ranks, once as the weights that a pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from tandem.policies.sharding import blocks_of

AHEAD = 2  # blocks at once: the one that computes, and the one that arrives meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Bytes of what is gathered at once; of trained ones again, for their gradients."""

    whole: int  # all of it
    block: int  # the largest block
    outside: int  # what is in no block: embeddings and the head
    block_gradient: int
    outside_gradient: int

    @property
    def in_an_update(self) -> int:
        """Blocks come and go, and what is in none stays. Gradients are whole until they are
        parted, those of the rest last, and twice there meanwhile, as the rest was when it came."""
        gradients = self.block_gradient + 2 * self.outside_gradient
        return self.outside + 2 * AHEAD * self.block + max(gradients, self.outside)

    @property
    def arriving(self) -> int:
        """The second time that bytes are there, where all is gathered and stays."""
        return max(AHEAD * self.block, self.block + self.outside)


def pieces_of(
    networks: Sequence[nn.Module], *, of: Callable[[nn.Parameter], bool] = lambda _: True
) -> Pieces:
    """Of the weights that count, in networks whose blocks are gathered one by one."""
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
