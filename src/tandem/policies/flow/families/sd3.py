"""Stable Diffusion 3 and 3.5, loaded from a folder of `StableDiffusion3Pipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.families.sd3_transformer import velocity, without_unread_queries
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import StableDiffusion3Pipeline

CLIP_TOKENS = 77


class SD3(Pipeline):
    """Prompts are states of two CLIPs and a T5; `max_sequence_length` is the T5's."""

    family = Family(
        pipeline="StableDiffusion3Pipeline",
        transformer="SD3Transformer2DModel",
        model="sd3_5_medium",
        siblings=("StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"),
    )
    even = False
    readers = tuple(
        f"{kind}{n}" for kind in ("text_encoder", "tokenizer") for n in ("", "_2", "_3")
    )
    optional = frozenset({"text_encoder_3", "tokenizer_3"})

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(
            channels=config.in_channels, patch=config.patch_size, most=config.pos_embed_max_size
        )

    def fit(self, network: nn.Module) -> nn.Module:
        return without_unread_queries(network)

    @property
    def text_tokens(self) -> int:
        return CLIP_TOKENS + self.max_sequence_length

    def condition(
        self, pipeline: StableDiffusion3Pipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, _, pooled, _ = pipeline.encode_prompt(
            prompt=asked.text,
            prompt_2=None,
            prompt_3=None,
            device=device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
        )
        return {"states": states[0], "pooled": pooled[0]}

    velocity = staticmethod(velocity)
