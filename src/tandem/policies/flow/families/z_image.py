"""Z-Image and Z-Image-Turbo, from any folder in the layout of `ZImagePipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import ZImagePipeline

CUT = "2-1"  # the layers of patches of 2 x 2 x 1, the only ones that its pipeline asks for


class ZImage(Pipeline):
    """Text as a Qwen3 reads it in its chat template. `guidance_scale` is one more than its
    pipeline's, which adds that many times the difference to the velocity for the prompt."""

    family = Family(
        pipeline="ZImagePipeline",
        transformer="ZImageTransformer2DModel",
        model="z_image",
        siblings=("ZImageImg2ImgPipeline",),
    )
    readers = ("text_encoder", "tokenizer")
    lora_targets = tuple(f"attention.to_{name}" for name in ("q", "k", "v", "out.0"))

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels)

    def blank(self, rows: int) -> Condition:
        return texts.blank(rows, self.text_tokens, self.network.config.cap_feat_dim)

    def condition(
        self, pipeline: ZImagePipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        most = self.max_sequence_length
        (states,), _ = pipeline.encode_prompt(
            asked.text, device, do_classifier_free_guidance=False, max_sequence_length=most
        )
        return texts.padded(states, most)

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """It says data - noise, at a time that runs from 0 to 1."""
        dtype = network.all_x_embedder[CUT].weight.dtype
        films = list(x.to(dtype)[:, :, None].unbind())
        read = [states.to(dtype) for states in texts.unpadded(condition)]
        said = network(films, 1 - sigma, read, return_dict=False)[0]
        return -torch.stack(said)[:, :, 0]

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.all_final_layer[CUT], network.config.dim
