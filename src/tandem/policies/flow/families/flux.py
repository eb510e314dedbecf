"""FLUX.1, from any folder in the layout of `FluxPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.guidance import EmbeddedGuidance
from tandem.policies.flow.families.patches import packed, places, unpacked
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import FluxPipeline


class Flux(EmbeddedGuidance):
    """Text as a T5 sees it, and one vector of a CLIP; `max_sequence_length` is the T5's."""

    family = Family(pipeline="FluxPipeline", transformer="FluxTransformer2DModel")
    readers = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels // 4)

    def condition(
        self, pipeline: FluxPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, pooled, _ = pipeline.encode_prompt(
            prompt=asked.text, device=device, max_sequence_length=self.max_sequence_length
        )
        return {"states": states[0], "pooled": pooled[0]}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype = network.x_embedder.weight.dtype
        states, (height, width) = condition["states"].to(dtype), x.shape[2:]
        patches = network(
            hidden_states=packed(x.to(dtype)),
            timestep=sigma,
            guidance=self.guidance(sigma),
            encoder_hidden_states=states,
            pooled_projections=condition["pooled"].to(dtype),
            txt_ids=states.new_zeros(states.shape[1], 3),
            img_ids=places(0, height // 2, width // 2).to(states),
            return_dict=False,
        )[0]
        return unpacked(patches, height, width)
