"""Adapted layers whose low-rank change is one operation: the sums of peft, with less memory.

peft casts the input of every layer to the adapter's float32 and keeps that copy, then scales, adds
and casts in separate passes over [..., out]. Here the input is kept as it came, which the layers
for queries, keys and values share, and the change is scaled, added and cast in one pass.
"""

from __future__ import annotations

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.amp import is_autocast_available
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import linear


def fuse_adapters(network: nn.Module) -> None:
    """Compute the adapters of linear layers in this way; those of other layers stay peft's."""
    for layer in network.modules():
        if type(layer) is Linear and not layer.lora_variant:
            layer.__class__ = LowRankLinear


class LowRankLinear(Linear):
    """A frozen linear layer with one adapter without dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        if self.disable_adapters or self.merged:
            return super().forward(x)
        (name,) = self.active_adapters
        down, up = self.lora_A[name].weight, self.lora_B[name].weight
        return _LowRankSum.apply(self.base_layer(x), x, down, up, self.scaling[name])


class _LowRankSum(torch.autograd.Function):
    """base + scale x A^T B^T in the dtype of base, computed in that of the adapter or of autocast.
    It has no second derivative.

    base: [..., out]; x: [..., in]; down, A: [r, in]; up, B: [out, r]. (arXiv:2106.09685, 4.1)
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, base: Tensor, x: Tensor, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        device = x.device.type
        mixed = is_autocast_available(device) and torch.is_autocast_enabled(device)
        ctx.dtype = torch.get_autocast_dtype(device) if mixed else down.dtype
        ctx.scale = scale
        low = linear(x.to(ctx.dtype), down.to(ctx.dtype))
        change = linear(low, up.to(ctx.dtype))
        ctx.save_for_backward(x, low, down, up)
        return torch.add(base, change, alpha=scale, out=torch.empty_like(base))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, down, up = ctx.saved_tensors
        wide = gradient.to(ctx.dtype)
        pulled = (wide @ up.to(ctx.dtype)).mul_(ctx.scale)
        to_up = _outer(wide, low).mul_(ctx.scale).to(up.dtype)
        to_down = _outer(pulled, x.to(ctx.dtype)).to(down.dtype)
        to_x = None
        if ctx.needs_input_grad[1]:
            to_x = (pulled @ down.to(ctx.dtype)).to(x.dtype)
        return gradient, to_x, to_down, to_up, None


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """The sum over rows of their outer products: [..., n], [..., m] -> [n, m]."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])
