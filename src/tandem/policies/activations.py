"""Activation memory of training passes: recomputed blocks, and feed-forward layers that read a
sequence in tiles (sequence tiling, arXiv:2506.13996)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem.policies.sharding import blocks_of

if TYPE_CHECKING:
    from tandem.policies.language.pretrained import Numerics

AGAIN = {"use_reentrant": False, "preserve_rng_state": False}  # there are no random numbers
ENDINGS = ("MLP", "FeedForward")  # of class names, in transformers and in diffusers
SMALL = 0.1  # share of the weights in other lists, such as the layers of an embedding


def save_activations(model: nn.Module, numerics: Numerics) -> None:
    """Recompute the activations of blocks, and tile feed-forward layers, as configured."""
    if numerics.gradient_checkpointing:
        recompute_activations(model)
    if numerics.mlp_tile is not None:
        tile_feed_forward(model, numerics.mlp_tile)


def recompute_activations(network: nn.Module) -> None:
    """Let each block keep its inputs alone for backward, which computes the others again.

    The libraries do so in train mode only, in which some families compute another function: noise
    in the choice of experts, dropout, kernels of their own. Raises ValueError for a network without
    blocks.
    """
    blocks = blocks_of(network)
    if not blocks:
        raise ValueError(
            f"model.gradient_checkpointing=true: {type(network).__name__} has no list of blocks to "
            "recompute; set model.gradient_checkpointing=false"
        )
    for block in blocks:
        if "run_block" not in vars(block):  # not yet by the other policy of these layers
            block.run_block = block.forward
            block.forward = MethodType(_recompute, block)  # a deep copy binds it to the copied one


def _recompute(block: nn.Module, *given: Any, **named: Any) -> Any:
    # A second run would append its keys and values to the cache again.
    if not torch.is_grad_enabled() or named.get("past_key_values") is not None:
        return block.run_block(*given, **named)
    return checkpoint(block.run_block, *given, **named, **AGAIN)


def tile_feed_forward(network: nn.Module, tokens: int) -> None:
    """Let each feed-forward layer of the blocks read at most `tokens` tokens at once: intermediate
    activations are held for a single tile, in forward and backward.

    Raises ValueError for a network without feed-forward layers.
    """
    blocks = blocks_of(network)
    layers_of = [[m for m in x.modules() if type(m).__name__.endswith(ENDINGS)] for x in blocks]
    layers = [layer for own in layers_of for layer in own]
    if not layers:
        raise ValueError(
            f"model.mlp_tile={tokens}: {type(network).__name__} has no feed-forward layer with a "
            f"class name ...{' or ...'.join(ENDINGS)}; set model.mlp_tile=null"
        )
    _warn_of_others(network, blocks, [bool(own) for own in layers_of], tokens)
    for layer in layers:
        if "read_tile" in vars(layer):  # tiled already by the other policy of these layers
            layer.tile = min(layer.tile, tokens)
            continue
        layer.read_tile, layer.tile = layer.forward, tokens
        layer.forward = MethodType(_read, layer)  # a deep copy binds it to the copied layer


def _warn_of_others(
    network: nn.Module, blocks: Sequence[nn.Module], tiled: Sequence[bool], tokens: int
) -> None:
    """Warn of blocks whose feed-forward part is not a layer, such as the single-stream ones of
    FLUX: where one block is recomputed at a time, they are the peak."""
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    share = sum(size for size, own in zip(sizes, tiled, strict=True) if not own) / sum(sizes)
    if share > SMALL:
        warnings.warn(
            f"model.mlp_tile={tokens}: {len(blocks) - sum(tiled)} of {len(blocks)} blocks of "
            f"{type(network).__name__}, with {share:.0%} of the weights, have no feed-forward "
            "layer and are not tiled; estimate=true says whether it saves memory",
            stacklevel=2,
        )


def _read(layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Tensor:
    """[..., D] -> [..., D], each position independently; backward recomputes each tile."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] <= layer.tile:
        return layer.read_tile(x, *others, **named)

    def read(tile: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return layer.read_tile(tile, *others, **named)
        return checkpoint(layer.read_tile, tile, *others, **named, **AGAIN)

    return torch.cat([read(tile) for tile in rows.split(layer.tile)]).view_as(x)
