"""Activations that a training pass holds for its backward: blocks that are computed again, and
feed-forward layers that read a sequence in tiles (sequence tiling, arXiv:2506.13996)."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem.policies.sharding import blocks_of

if TYPE_CHECKING:
    from tandem.policies.language.pretrained import Numerics

ENDINGS = ("MLP", "FeedForward")  # of the classes' names, in transformers and in diffusers


def save_activations(model: nn.Module, numerics: Numerics) -> None:
    """Recompute what blocks keep for their backward, and cut feed-forward layers, as asked for."""
    if numerics.gradient_checkpointing:
        recompute_activations(model)
    if numerics.mlp_tile is not None:
        tile_feed_forward(model, numerics.mlp_tile)


def recompute_activations(model: nn.Module) -> None:
    """Works in train mode alone; it was called after gradients before it was after activations."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def tile_feed_forward(network: nn.Module, tokens: int) -> None:
    """Let each feed-forward layer of the blocks read at most so many tokens at once: what lies
    between its products is held of one tile alone, forward and backward.

    Raises ValueError for a network that has none.
    """
    inside = [m for block in blocks_of(network) for m in block.modules()]
    layers = [m for m in inside if type(m).__name__.endswith(ENDINGS)]
    if not layers:
        raise ValueError(
            f"model.mlp_tile={tokens}: {type(network).__name__} has no blocks with a layer whose "
            f"class is named ...{' or ...'.join(ENDINGS)}; set model.mlp_tile=null"
        )
    for layer in layers:
        layer.read_tile, layer.tile = layer.forward, tokens
        layer.forward = MethodType(_read, layer)  # which a deep copy binds to the copy


def _read(layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Tensor:
    """[..., D] -> [..., D], each place by itself; a tile is computed again for its backward."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] <= layer.tile:
        return layer.read_tile(x, *others, **named)

    def read(tile: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return layer.read_tile(tile, *others, **named)
        again = {"use_reentrant": False, "preserve_rng_state": False}  # nothing is drawn here
        return checkpoint(layer.read_tile, tile, *others, **named, **again)

    return torch.cat([read(tile) for tile in rows.split(layer.tile)]).view_as(x)
