"""Quantised base models: frozen linear layers with weights of 8 or 4 bits, under adapters
(QLoRA, arXiv:2305.14314).

A weight is packed once, after loading, and unpacked in every pass that reads it, so a layer has the
same output with and without gradient and in any batch: that of the rounded weight.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from tandem.policies.sharding import blocks_of
from tandem.policies.weights import layers_of

log = logging.getLogger(__name__)

PREFIX = "packed_"  # of the names of packed parameters
MEASURED = 2**18  # elements of the weight on which the packed size is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed weight."""

    tensors: Mapping[str, Tensor]  # of any shape and dtype
    form: Any  # other data that unpacking needs; it does not move with the tensors


class Quantization(ABC):
    """A rounding and packing of weights. `@register_quantization` makes it an option of
    `model/quantization`."""

    package: ClassVar[str | None] = None  # required package; None: torch alone
    extra: ClassVar[str | None] = None  # Tandem's extra that installs it

    @abstractmethod
    def pack(self, weight: Tensor) -> Packed:
        """Pack a weight [rows, columns] of a linear layer, on its device."""

    @abstractmethod
    def unpack(self, packed: Packed) -> Tensor:
        """The rounded weight: [rows, columns], in its original dtype."""


class QuantizedLinear(nn.Module):
    """A frozen linear layer with a packed weight. Its state dict is that of a plain layer, so a
    model with such layers is saved like any other."""

    def __init__(self, layer: nn.Linear, quantization: Quantization) -> None:
        super().__init__()
        # Packing a billion weights takes minutes on a CPU, and seconds on a GPU.
        fast = torch.device("cuda") if torch.cuda.is_available() else layer.weight.device
        with torch.no_grad():
            packed = quantization.pack(layer.weight.detach().to(fast))
        self.quantization, self.form = quantization, packed.form
        self.in_features, self.out_features = layer.in_features, layer.out_features
        for name, x in packed.tensors.items():
            kept = nn.Parameter(x.to(layer.weight.device), requires_grad=False)
            self.register_parameter(PREFIX + name, kept)
        self.names = tuple(packed.tensors)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The rounded weight, [out, in]."""
        tensors = {name: self.get_parameter(PREFIX + name).data for name in self.names}
        return self.quantization.unpack(Packed(tensors=tensors, form=self.form))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        return _Product.apply(x, self)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias if keep_vars else self.bias.detach()


class _Product(torch.autograd.Function):
    """x W^T + b of a frozen layer. Backward unpacks the weight again instead of storing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return linear(x, layer.weight.to(x.dtype), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return (slope @ ctx.layer.weight.to(slope.dtype)).to(ctx.dtype), None


def layers_to_pack(network: nn.Module) -> dict[str, nn.Linear]:
    """The frozen linear layers of the blocks, by name. Layers outside of blocks (embeddings of
    tokens, patches and times, the head) are not packed."""
    inside = {m for block in blocks_of(network) for m in block.modules()}
    return {
        name: layer
        for name, layer in layers_of(network, nn.Linear).items()
        if layer in inside and not layer.weight.requires_grad
    }


def quantize(network: nn.Module, quantization: Quantization) -> None:
    """Pack the weights of those layers in place, one layer at a time.

    Raises ValueError for a network without such layers.
    """
    layers = layers_to_pack(network)
    if not layers:
        raise ValueError(
            f"model.quantization: {type(network).__name__} has no list of blocks with frozen "
            "linear layers; leave model/quantization out"
        )
    warn_of_unpacked(network, layers.values())
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, QuantizedLinear(layer, quantization))


def warn_of_unpacked(network: nn.Module, layers: Iterable[nn.Linear]) -> None:
    """Warn where most frozen weights of the blocks are not of linear layers: fused experts."""
    frozen = {p for b in blocks_of(network) for p in b.parameters() if not p.requires_grad}
    packed, every = sum(x.weight.numel() for x in layers), sum(p.numel() for p in frozen)
    if packed < every / 2:
        log.warning(
            "model.quantization packs %.0f %% of the frozen weights in the blocks of %s: the "
            "others, such as experts, are not in linear layers and stay as they are",
            100 * packed / every,
            type(network).__name__,
        )


def packed_sizes(
    networks: Iterable[nn.Module], how: Quantization | None
) -> dict[nn.Parameter, int]:
    """Packed bytes of the weights of outlined networks, measured on a weight with the same columns
    and at most MEASURED elements, and scaled up."""
    if how is None:
        return {}
    weights = [x.weight for network in networks for x in layers_to_pack(network).values()]
    known = {key: _size_of(how, *key) for key in {(*w.shape, w.dtype) for w in weights}}
    return {w: known[(*w.shape, w.dtype)] for w in weights}


def _size_of(how: Quantization, rows: int, columns: int, dtype: torch.dtype) -> int:
    few = min(rows, -(-MEASURED // columns))
    packed = how.pack(torch.linspace(-1, 1, few * columns).view(few, columns).to(dtype))
    return round(sum(x.nbytes for x in packed.tensors.values()) * rows / few)
