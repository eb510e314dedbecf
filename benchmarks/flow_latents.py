"""A flow model of SD3's architecture on latents, built in code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.data.images import show
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.sd3_transformer import (
    image_tokens,
    velocity,
    without_unread_queries,
)
from tandem.policies.flow.lora import ATTENTION
from tandem.policies.flow.records import Condition, PromptInput
from tandem.types import Prompt

SIDE, CHANNELS = 64, 16  # of one latent picture
TEXT_TOKENS, TEXT_WIDTH, POOLED_WIDTH = 77, 4096, 2048  # the widths are those of SD 3


class Latents:
    """An SD3 transformer with random weights, without encoders and VAE.

    Random numbers replace text embeddings, and the first channels of a latent are its image.
    """

    lora_targets = ATTENTION
    only_resolution = SIDE
    images = 0
    latent_shape = (CHANNELS, SIDE, SIDE)
    image_shape = (SIDE, SIDE, 3)
    tokens = (image_tokens(SIDE, 2), TEXT_TOKENS)

    def canvas(self, resolution: int | None, frames: int | None = None) -> Canvas:
        return Canvas(latent_shape=self.latent_shape, tokens=self.tokens[0])

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        from diffusers import SD3Transformer2DModel

        torch.manual_seed(0)
        network = SD3Transformer2DModel(
            sample_size=SIDE,
            patch_size=2,
            in_channels=CHANNELS,
            out_channels=CHANNELS,
            num_layers=5,
            num_attention_heads=8,
            attention_head_dim=64,
            joint_attention_dim=TEXT_WIDTH,
            caption_projection_dim=512,
            pooled_projection_dim=POOLED_WIDTH,
            pos_embed_max_size=SIDE,
            qk_norm="rms_norm",
        )
        return without_unread_queries(network)

    def fingerprint(self) -> None:
        return None

    def refuse(self, text: str) -> None:
        return None

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        shapes = {"states": (TEXT_TOKENS, TEXT_WIDTH), "pooled": (POOLED_WIDTH,)}
        for one in inputs:
            yield {name: rng.normal(rng.key(one.text, name), shapes[name]) for name in shapes}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        return velocity(network, x, sigma, condition)

    def decode(self, x0: Tensor) -> Tensor:
        pixels = ((x0[:, :3].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1).contiguous()

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        pixels = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
        return pixels.repeat(1, -(-CHANNELS // 3), 1, 1)[:, :CHANNELS]


def grey() -> tuple[Prompt, ...]:
    """Eight prompts with an image each."""
    picture = show(torch.full((SIDE, SIDE, 3), 128, dtype=torch.uint8))
    return tuple(Prompt(id=i, source="grey", text=f"grey {i}", media=picture) for i in range(8))
