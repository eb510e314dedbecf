"""LTX-Video, text to video, loaded from a folder in the layout of `LTXPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import LTXPipeline

FRAMES_PER_SECOND = 25  # of the pipeline


class LTX(Films):
    """Prompts are T5 states. A token is a pixel of the latent."""

    family = Family(
        pipeline="LTXPipeline",
        transformer="LTXVideoTransformer3DModel",
        vae="AutoencoderKLLTXVideo",
        model="ltx_video",
        siblings=("LTXImageToVideoPipeline",),
    )
    readers = ("text_encoder", "tokenizer")
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0")

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels, patch=1)

    def blank(self, rows: int) -> Condition:
        return texts.blank(rows, self.text_tokens, self.network.config.caption_channels)

    def condition(
        self, pipeline: LTXPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        most = self.max_sequence_length
        states, mask, _, _ = pipeline.encode_prompt(
            asked.text, do_classifier_free_guidance=False, max_sequence_length=most, device=device
        )
        return {"states": states[0], "mask": mask[0]}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, (frames, height, width) = network.proj_in.weight.dtype, x.shape[2:]
        tokens = network(
            hidden_states=x.flatten(2).mT.to(dtype),
            encoder_hidden_states=condition["states"].to(dtype),
            timestep=1000 * sigma,
            encoder_attention_mask=condition["mask"],
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=(self.stride / FRAMES_PER_SECOND, self.scale, self.scale),
            return_dict=False,
        )[0]
        return tokens.mT.reshape(x.shape)

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        own = self.vae.latents_mean, self.vae.latents_std / self.vae.config.scaling_factor
        mean, std = (x.to(like)[:, None, None, None] for x in own)
        return mean, std

    def decode_raw(self, raw: Tensor) -> Tensor:
        """Some VAEs also take a noise level; by default, the pipeline gives them 0."""
        sigma = raw.new_zeros(len(raw)) if self.vae.config.timestep_conditioning else None
        return self.vae.decode(raw, sigma).sample
