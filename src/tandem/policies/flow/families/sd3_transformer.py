"""The SD3 transformer of diffusers, shared by Stable Diffusion 3, 3.5 and the embedded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem.policies.flow.records import Condition
from tandem.policies.weights import join_graph

if TYPE_CHECKING:
    from diffusers.models.attention_processor import Attention


def velocity(network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
    """The predicted velocity, [B, C, H, W]; sigma [B] is passed as a timestep of 1000 sigma."""
    dtype = network.pos_embed.proj.weight.dtype
    return network(
        hidden_states=x.to(dtype),
        timestep=1000 * sigma,
        encoder_hidden_states=condition["states"].to(dtype),
        pooled_projections=condition["pooled"].to(dtype),
        return_dict=False,
    )[0]


def without_unread_queries(network: nn.Module) -> nn.Module:
    """The same transformer, without text queries in its last block.

    diffusers computes them and discards the text output of the last block.
    """
    for block in network.transformer_blocks:
        if block.context_pre_only:
            block.attn.set_processor(ImageQueries())
    return network


class ImageQueries:
    """Joint attention with image queries only, over image and text: [B, tokens, H] of both."""

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: None = None,  # this transformer has none
    ) -> tuple[Tensor, None]:
        image, text = hidden_states, encoder_hidden_states
        query = heads(attn, attn.to_q(image), attn.norm_q)
        own = heads(attn, attn.to_k(image), attn.norm_k)
        key = torch.cat([own, heads(attn, attn.add_k_proj(text), attn.norm_added_k)], dim=2)
        value = torch.cat(
            [heads(attn, attn.to_v(image)), heads(attn, attn.add_v_proj(text))], dim=2
        )
        unread = [part for part in (attn.add_q_proj, attn.norm_added_q) if part is not None]
        query = join_graph(query, (p for part in unread for p in part.parameters()))
        attended = functional.scaled_dot_product_attention(query, key, value)
        return attn.to_out[0](attended.transpose(1, 2).flatten(2)), None


def heads(attn: Attention, x: Tensor, norm: nn.Module | None = None) -> Tensor:
    """[B, tokens, H] -> [B, heads, tokens, H / heads], normalised if there is a norm."""
    apart = x.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
    return apart if norm is None else norm(apart)


def image_tokens(size: int, patch: int) -> int:
    """Tokens of a square latent."""
    return (size // patch) ** 2
