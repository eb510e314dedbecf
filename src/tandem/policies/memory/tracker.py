"""Peak bytes of tensors of a computation, also of one without numbers (meta)."""

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

FUSED = "counted"  # the name of our attention among transformers'


class Peak(TorchDispatchMode):
    """Counts every tensor that is made under it until it is given up.

    `most` is what a caching allocator would have handed out at once, in bytes, beside `known`
    tensors and beside what a kernel takes for itself.
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
def fused() -> Iterator[None]:
    """torch's own attention without a matrix of scores, which a meta device would make.

    In place of the function itself: what is recomputed in backward runs under no mode of torch's.
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
    """Let a transformers model attend without a matrix of scores: on the meta device torch itself
    would make one, and nowhere else."""
    from transformers import AttentionInterface

    AttentionInterface.register(FUSED, _attend)
    model.set_attn_implementation(FUSED)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: object
) -> tuple[Tensor, None]:
    """As transformers calls torch's: under a mask every head has keys and values of its own, and
    the kernel adds a bias that is made of the mask."""
    groups = query.shape[1] // key.shape[1]
    if mask is not None and groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    bias = None if mask is None else query.new_empty(mask.shape)
    return _Attention.apply(query, key, value, bias).transpose(1, 2).contiguous(), None


class _Attention(torch.autograd.Function):
    """What a fused kernel keeps: its inputs, its output, and one number a row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        scale = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, bias, out, scale)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *(torch.empty_like(x) for x in ctx.saved_tensors[:3]), None
