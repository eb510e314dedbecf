"""FLUX.1 and FLUX.1-Kontext, loaded from a folder in the layout of their pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.contracts import declare
from tandem.policies.flow.families.guidance import EmbeddedGuidance
from tandem.policies.flow.families.images import input_latents
from tandem.policies.flow.families.patches import pack, places, unpack
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import FluxPipeline


class Flux(EmbeddedGuidance):
    """Prompts are T5 states and one pooled CLIP vector; `max_sequence_length` is the T5's."""

    family = Family(
        pipeline="FluxPipeline",
        transformer="FluxTransformer2DModel",
        model="flux1_dev",
        siblings=("FluxImg2ImgPipeline", "FluxInpaintPipeline"),
    )
    readers = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels // 4)

    def condition(
        self, pipeline: FluxPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, pooled, _ = pipeline.encode_prompt(
            prompt=asked.text, device=device, max_sequence_length=self.max_sequence_length
        )
        return {"states": states[0], "pooled": pooled[0], **self.look_at(asked, device)}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype = network.x_embedder.weight.dtype
        states, pictures = condition["states"].to(dtype), (x, *input_latents(condition))
        where = [
            places(n, *(side // 2 for side in one.shape[2:])) for n, one in enumerate(pictures)
        ]
        patches = network(
            hidden_states=torch.cat([pack(one.to(dtype)) for one in pictures], 1),
            timestep=sigma,
            guidance=self.guidance(sigma),
            encoder_hidden_states=states,
            pooled_projections=condition["pooled"].to(dtype),
            txt_ids=states.new_zeros(states.shape[1], 3),
            img_ids=torch.cat(where).to(states),
            return_dict=False,
        )[0]
        return unpack(patches[:, : len(where[0])], *x.shape[2:])


@declare(shows=range(1, 2))
class FluxKontext(Flux):
    """FLUX.1-Kontext, in the layout of `FluxKontextPipeline`: edits the image of a prompt."""

    family = Family(
        pipeline="FluxKontextPipeline",
        transformer="FluxTransformer2DModel",
        model="flux1_kontext",
        siblings=("FluxKontextInpaintPipeline",),
    )
