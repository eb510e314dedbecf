"""Sana and Sana 1.5, loaded from a folder in the layout of `SanaPipeline`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import SanaPipeline


class Sana(Pipeline):
    """Prompts are Gemma2 states after the pipeline's instruction; negative prompts have no
    instruction."""

    family = Family(
        pipeline="SanaPipeline",
        transformer="SanaTransformer2DModel",
        vae="AutoencoderDC",
        model="sana_1_6b",
    )
    even = False
    readers = ("text_encoder", "tokenizer")
    lora_targets = tuple(f"attn{n}.to_{x}" for n in (1, 2) for x in ("q", "k", "v", "out.0"))

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(channels=config.in_channels, patch=config.patch_size)

    @property
    def scale(self) -> int:
        return 2 ** (len(self.vae.config.encoder_block_out_channels) - 1)

    def blank(self, rows: int) -> Condition:
        return texts.blank(rows, self.text_tokens, self.network.config.caption_channels)

    def condition(
        self, pipeline: SanaPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        called = inspect.signature(type(pipeline).__call__).parameters
        instruction = called["complex_human_instruction"].default
        states, mask, _, _ = pipeline.encode_prompt(
            asked.text,
            do_classifier_free_guidance=False,
            device=device,
            max_sequence_length=self.max_sequence_length,
            complex_human_instruction=None if asked.negative else instruction,
        )
        return {"states": states[0], "mask": mask[0].bool()}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, config = network.patch_embed.proj.weight.dtype, network.config
        return network(
            x.to(dtype),
            encoder_hidden_states=condition["states"].to(dtype),
            encoder_attention_mask=condition["mask"],
            timestep=1000 * sigma * config.timestep_scale,
            return_dict=False,
        )[0]

    def encode_raw(self, pixels: Tensor) -> Tensor:
        return self.vae.encode(pixels).latent
