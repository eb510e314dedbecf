"""Floating-point operations that a model needs and that a device can do: MFU is their ratio.

    MFU = operations that the algorithm needs / seconds / operations that the device can do

Recomputation that saves memory (`gradient_checkpointing`, chunks of the head) takes seconds and
adds no operations. A multiplication with an addition is two operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from transformers import Qwen3Config

# The cost of a training pass in forward passes: frozen weights get no gradient.
PASSES = {"full": 3, "lora": 2}


def layer_weights(config: Qwen3Config) -> int:
    """Number of elements in the matrices of all layers."""
    heads = config.num_attention_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    one = config.hidden_size * (2 * heads + 2 * shared + 3 * config.intermediate_size)
    return config.num_hidden_layers * one


def head_weights(config: Qwen3Config) -> int:
    return config.hidden_size * config.vocab_size


def language_forward(config: Qwen3Config, read: Tensor, trained: int) -> float:
    """2 W_layers sum(s) + 2 W_head n + 2 L H sum(s^2): rows of s tokens each, n of them trained.

    The last part is attention, whose causal half counts: scores and sums of values are 2 s^2 H
    each, H being heads x their size. read: [B] int64.
    """
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    lengths = read.double()
    layers = 2 * layer_weights(config) * lengths.sum()
    attention = 2 * width * lengths.square().sum()
    return float(layers + attention) + 2 * head_weights(config) * trained


def decoded_bytes(config: Qwen3Config, size: int) -> int:
    """The bytes that one decoding step must read: every matrix once. size: bytes of a number."""
    return size * (layer_weights(config) + head_weights(config))


def flow_forward(network: nn.Module, call: Callable[[nn.Module], object]) -> float:
    """Operations of `call` on a meta copy of the network, counted one by one; there attention
    consists of matrix products on every machine."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(type(network).from_config(network.config))
    return float(counter.get_total_flops())
