"""A tracker of the peak bytes of a computation's tensors, also on the meta device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

FUSED = "counted"  # our attention's name in transformers' registry


class Peak(TorchDispatchMode):
    """Counts the bytes of every tensor allocated under it until it is freed.

    `most` is the peak, in bytes, that a caching allocator would have allocated, without `known`
    tensors and the workspaces of kernels. Those of convolutions count as a copy of their input, in
    another layout: with it the decoding of a VAE is within 8 % of what it takes on a GPU.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self.seen = WeakIdKeyDictionary()
        for tensor in known:
            self.seen[tensor.untyped_storage()] = 0

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self._hold(x.untyped_storage())
        if function is torch.ops.aten.convolution.default:
            self.most = max(self.most, self.now + args[0].nbytes)
        return made

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage in self.seen:
            return
        size = self.seen[storage] = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._give_up, size)

    def _give_up(self, size: int) -> None:
        self.now -= size


@contextmanager
def fuse_torch_attention() -> Iterator[None]:
    """Replace torch's attention by one without a score matrix, which the meta device allocates.

    The function itself is replaced: recomputation in the backward pass runs outside torch modes.
    """
    own = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = _attend_as_torch
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = own


def _attend_as_torch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    bias = None if attn_mask is None else query.new_empty(attn_mask.shape)
    return _Attention.apply(query, key, value, bias)


def fuse_attention(model: nn.Module) -> None:
    """Give a transformers model attention without a score matrix, which torch allocates only on
    the meta device."""
    from transformers import AttentionInterface

    AttentionInterface.register(FUSED, _attend)
    model.set_attn_implementation(FUSED)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: object
) -> tuple[Tensor, None]:
    """Attention as transformers calls torch's: with a mask, keys and values are repeated per head
    and the kernel adds a bias made from the mask."""
    groups = query.shape[1] // key.shape[1]
    if mask is not None and groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    bias = None if mask is None else query.new_empty(mask.shape)
    return _Attention.apply(query, key, value, bias).transpose(1, 2).contiguous(), None


class _Attention(torch.autograd.Function):
    """Saves what a fused kernel saves: its inputs, its output, and one number per row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        scale = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, bias, out, scale)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *(torch.empty_like(x) for x in ctx.saved_tensors[:3]), None
