"""The quantisations of bitsandbytes and torchao: weights are rounded and packed as in those
libraries, and products are computed in the dtype of the pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_quantization
from tandem.policies.quantization import Packed, Quantization

BLOCK, OUTER_BLOCK = 64, 256  # weights per scale, scales per outer scale


# 4 bits: NF4 or FP4 in blocks of 64, whose scales are quantised as well (QLoRA)
@register_quantization("bnb_4bit")
class BitsAndBytes4(Quantization):
    """Weights as `BitsAndBytesConfig(load_in_4bit=True)` rounds them (arXiv:2305.14314)."""

    package, extra = "bitsandbytes", "8bit"

    def __init__(
        self, *, quant_type: Literal["nf4", "fp4"] = "nf4", double_quant: bool = True
    ) -> None:
        """double_quant: scales take 8 bits instead of 32. quant_type: the 16 values of a weight,
        those of a normal distribution (nf4) or floats (fp4)."""
        self.quant_type, self.double_quant = quant_type, double_quant

    def pack(self, weight: Tensor) -> Packed:
        from bitsandbytes import functional

        kept, state = functional.quantize_4bit(
            weight.contiguous(),
            blocksize=BLOCK,
            compress_statistics=self.double_quant,
            quant_type=self.quant_type,
        )
        tensors = {"weight": kept, "absmax": state.absmax, "code": state.code}
        if self.double_quant:
            outer = state.state2
            tensors |= {"outer": outer.absmax, "outer_code": outer.code, "offset": state.offset}
        return Packed(tensors=tensors, form=(weight.shape, weight.dtype))

    def unpack(self, packed: Packed) -> Tensor:
        from bitsandbytes import functional

        own, (shape, dtype) = packed.tensors, packed.form
        outer = None
        if self.double_quant:
            outer = functional.QuantState(
                absmax=own["outer"],
                code=own["outer_code"],
                blocksize=OUTER_BLOCK,
                dtype=torch.float32,
            )
        state = functional.QuantState(
            absmax=own["absmax"],
            shape=shape,
            code=own["code"],
            blocksize=BLOCK,
            quant_type=self.quant_type,
            dtype=dtype,
            offset=own.get("offset"),
            state2=outer,
        )
        return functional.dequantize_4bit(own["weight"], state)


# 8 bits: integers with one scale per row (LLM.int8, weights alone)
@register_quantization("bnb_8bit")
class BitsAndBytes8(Quantization):
    """Weights as `BitsAndBytesConfig(load_in_8bit=True)` rounds them (arXiv:2208.07339).
    Activations are not rounded: to 8 bits, they would depend on other rows of the batch."""

    package, extra = "bitsandbytes", "8bit"

    def __init__(self) -> None:
        pass

    def pack(self, weight: Tensor) -> Packed:
        from bitsandbytes import functional

        kept, scale, _ = functional.int8_vectorwise_quant(weight.half())
        return Packed(tensors={"weight": kept, "scale": scale}, form=weight.dtype)

    def unpack(self, packed: Packed) -> Tensor:
        from bitsandbytes import functional

        own = packed.tensors
        return functional.int8_vectorwise_dequant(own["weight"], own["scale"]).to(packed.form)


# 8 bits of torchao: integers (int8) or floats (float8), one scale per row
@register_quantization("torchao_8bit")
class TorchAO8(Quantization):
    """Weights as torchao's `Int8WeightOnlyConfig` and `Float8WeightOnlyConfig` round them.
    dtype: of a stored weight."""

    package, extra = "torchao", "torchao"

    def __init__(
        self,
        *,
        dtype: Literal["int8", "float8"] = "int8",  # type of a stored weight
    ) -> None:
        self.dtype = dtype

    def pack(self, weight: Tensor) -> Packed:
        from torchao.quantization import (
            Float8WeightOnlyConfig,
            Int8WeightOnlyConfig,
            quantize_,
        )

        config = {"int8": Int8WeightOnlyConfig, "float8": Float8WeightOnlyConfig}[self.dtype]
        layer = torch.nn.Linear(*weight.shape[::-1], bias=False, device="meta")
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        quantize_(layer, config())
        names, rest = layer.weight.__tensor_flatten__()
        tensors = {name: getattr(layer.weight, name) for name in names}
        form = type(layer.weight.data), rest, weight.shape, weight.stride()
        return Packed(tensors=tensors, form=form)

    def unpack(self, packed: Packed) -> Tensor:
        kind, rest, shape, stride = packed.form
        return kind.__tensor_unflatten__(dict(packed.tensors), rest, shape, stride).dequantize()
