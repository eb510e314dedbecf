"""Weights in 8 bits by torch alone: `model/quantization=few_bits`."""

import torch
from torch import Tensor

from tandem import register_quantization
from tandem.policies.quantization import Packed, Quantization


@register_quantization("few_bits")
class FewBits(Quantization):
    """Integers with one scale per row."""

    def __init__(self, *, most: int = 127) -> None:
        self.most = most

    def pack(self, weight: Tensor) -> Packed:
        scale = weight.float().abs().amax(1, keepdim=True) / self.most
        whole = (weight.float() / scale).round().to(torch.int8)
        return Packed(tensors={"whole": whole, "scale": scale}, form=weight.dtype)

    def unpack(self, packed: Packed) -> Tensor:
        return (packed.tensors["whole"] * packed.tensors["scale"]).to(packed.form)
