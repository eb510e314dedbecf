"""Z-Image and Z-Image-Turbo, loaded from a folder in the layout of `ZImagePipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import ZImagePipeline

CUT = "2-1"  # the layers for 2 x 2 x 1 patches, the only ones that the pipeline uses


class ZImage(Pipeline):
    """Prompts are Qwen3 states of a chat template. `guidance_scale` is one more than in its
    pipeline, which adds that multiple of the difference to the prompted velocity."""

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
        return texts.pad_states(states, most)

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """The network predicts x0 - noise, at a time 1 - sigma."""
        dtype = network.all_x_embedder[CUT].weight.dtype
        films = list(x.to(dtype)[:, :, None].unbind())
        read = [states.to(dtype) for states in texts.unpad_states(condition)]
        said = network(films, 1 - sigma, read, return_dict=False)[0]
        return -torch.stack(said)[:, :, 0]

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.all_final_layer[CUT], network.config.dim
