"""The first HunyuanVideo, text to video, loaded from a folder of `HunyuanVideoPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.guidance import GuidanceInput
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import HunyuanVideoPipeline


class HunyuanVideo1(GuidanceInput, Films):
    """Prompts are Llama states of a template, and one pooled CLIP vector."""

    family = Family(
        pipeline="HunyuanVideoPipeline",
        transformer="HunyuanVideoTransformer3DModel",
        vae="AutoencoderKLHunyuanVideo",
        model="hunyuan_video",
    )
    readers = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    usual_guidance = 6.0

    def __init__(
        self,
        *,
        resolution: int = 720,
        width: int | None = None,
        frames: int = 129,
        max_sequence_length: int = 256,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
        embedded_guidance: float | None = usual_guidance,
    ) -> None:
        """`max_sequence_length`: tokens of the Llama. `embedded_guidance`: the guidance scale that
        the distilled transformer takes as an input, not classifier-free guidance."""
        super().__init__(
            resolution=resolution,
            width=width,
            frames=frames,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
        )
        self.embedded_guidance = embedded_guidance

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(channels=config.in_channels, patch=config.patch_size)

    def blank(self, rows: int) -> Condition:
        config = self.network.config
        pooled = torch.empty(rows, config.pooled_projection_dim, device="meta")
        return {**texts.blank(rows, self.text_tokens, config.text_embed_dim), "pooled": pooled}

    def condition(
        self, pipeline: HunyuanVideoPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, pooled, mask = pipeline.encode_prompt(
            asked.text, device=device, max_sequence_length=self.max_sequence_length
        )
        return {"states": states[0], "pooled": pooled[0], "mask": mask[0].bool()}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, given = network.x_embedder.proj.weight.dtype, self.guidance(sigma)
        return network(
            hidden_states=x.to(dtype),
            timestep=1000 * sigma,
            encoder_hidden_states=condition["states"].to(dtype),
            encoder_attention_mask=condition["mask"],
            pooled_projections=condition["pooled"].to(dtype),
            guidance=None if given is None else 1000 * given.to(dtype),
            return_dict=False,
        )[0]
