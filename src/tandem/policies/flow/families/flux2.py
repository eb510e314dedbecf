"""FLUX.2 dev and klein, loaded from a folder in the layout of their pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.contracts import declare
from tandem.dynamics.schedules import flux2, flux2_shift
from tandem.policies.flow.families.autoencoders import PatchedAutoencoded
from tandem.policies.flow.families.folders import read_index
from tandem.policies.flow.families.guidance import EmbeddedGuidance
from tandem.policies.flow.families.images import input_latents
from tandem.policies.flow.families.patches import places
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.lora import ATTENTION
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import Flux2KleinPipeline

APART = 10  # distance between the images of one sequence on the time axis of positions


@declare(shows=range(11))
class Flux2Klein(EmbeddedGuidance, PatchedAutoencoded):
    """Prompts are the states of three layers of a Qwen3."""

    family = Family(
        pipeline="Flux2KleinPipeline",
        transformer="Flux2Transformer2DModel",
        vae="AutoencoderKLFlux2",
        model="flux2_klein",
        siblings=("Flux2KleinInpaintPipeline",),
    )
    distilled = False
    readers = ("text_encoder", "tokenizer")
    lora_targets = (*ATTENTION, "attn.to_qkv_mlp_proj")

    def fit(self, network: nn.Module) -> nn.Module:
        self.distilled = bool(read_index(self.folder).get("is_distilled"))
        return super().fit(network)

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels, patch=1)

    @property
    def scale(self) -> int:
        return 2 * super().scale

    def shift(self, config: Mapping, *, steps: int, tokens: int) -> float:
        return flux2_shift(steps, tokens)

    def schedule_of(self, config: Mapping, *, even: bool) -> partial:
        return partial(flux2)

    def blank(self, rows: int) -> Condition:
        shape = rows, self.text_tokens, self.network.config.joint_attention_dim
        return {"states": torch.empty(shape, device="meta"), **self.blank_images(rows)}

    def condition(
        self, pipeline: Flux2KleinPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        most = self.max_sequence_length
        states, _ = pipeline.encode_prompt(asked.text, device=device, max_sequence_length=most)
        return {"states": states[0], **self.look_at(asked, device)}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype = network.x_embedder.weight.dtype
        states, pictures = condition["states"].to(dtype), (x, *input_latents(condition))
        words = torch.arange(states.shape[1], device=x.device)[:, None]
        where = [places(APART * n, *one.shape[2:]) for n, one in enumerate(pictures)]
        patches = network(
            hidden_states=torch.cat([one.to(dtype).flatten(2) for one in pictures], 2).mT,
            timestep=sigma,
            guidance=self.guidance(sigma),
            encoder_hidden_states=states,
            txt_ids=torch.cat([words.new_zeros(len(words), 3), words], 1),
            img_ids=nn.functional.pad(torch.cat(where), (0, 1)).to(x.device),
            return_dict=False,
        )[0]
        return patches[:, : len(where[0])].mT.reshape(x.shape)


class Flux2(Flux2Klein):
    """Prompts are states of three layers of a Mistral; `embedded_guidance` replaces guidance."""

    family = Family(
        pipeline="Flux2Pipeline",
        transformer="Flux2Transformer2DModel",
        vae="AutoencoderKLFlux2",
        model="flux2_dev",
    )
    usual_guidance = 4.0
