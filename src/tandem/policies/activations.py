"""Activation memory of training passes: recomputed blocks, and feed-forward layers that read a
sequence in tiles (sequence tiling, arXiv:2506.13996)."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem.policies.sharding import blocks_of

if TYPE_CHECKING:
    from tandem.policies.language.pretrained import Numerics

ENDINGS = ("MLP", "FeedForward")  # of class names, in transformers and in diffusers


def save_activations(model: nn.Module, numerics: Numerics) -> None:
    """Recompute the activations of blocks, and tile feed-forward layers, as configured."""
    if numerics.gradient_checkpointing:
        recompute_activations(model)
    if numerics.mlp_tile is not None:
        tile_feed_forward(model, numerics.mlp_tile)


def recompute_activations(model: nn.Module) -> None:
    """Works in train mode alone. The method is named after activations, or after gradients in
    older releases."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def tile_feed_forward(network: nn.Module, tokens: int) -> None:
    """Let each feed-forward layer of the blocks read at most `tokens` tokens at once: intermediate
    activations are held for a single tile, in forward and backward.

    Raises ValueError for a network without feed-forward layers.
    """
    inside = [m for block in blocks_of(network) for m in block.modules()]
    layers = [m for m in inside if type(m).__name__.endswith(ENDINGS)]
    if not layers:
        raise ValueError(
            f"model.mlp_tile={tokens}: {type(network).__name__} has no feed-forward layer with a "
            f"class name ...{' or ...'.join(ENDINGS)}; set model.mlp_tile=null"
        )
    for layer in layers:
        if "read_tile" in vars(layer):  # tiled already by the other policy of these layers
            layer.tile = min(layer.tile, tokens)
            continue
        layer.read_tile, layer.tile = layer.forward, tokens
        layer.forward = MethodType(_read, layer)  # a deep copy binds it to the copied layer


def _read(layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Tensor:
    """[..., D] -> [..., D], each position independently; backward recomputes each tile."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] <= layer.tile:
        return layer.read_tile(x, *others, **named)

    def read(tile: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return layer.read_tile(tile, *others, **named)
        again = {"use_reentrant": False, "preserve_rng_state": False}  # no random numbers here
        return checkpoint(layer.read_tile, tile, *others, **named, **again)

    return torch.cat([read(tile) for tile in rows.split(layer.tile)]).view_as(x)
