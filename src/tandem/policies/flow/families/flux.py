"""FLUX.1, from any folder in the layout of `FluxPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.patches import packed, unpacked
from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.records import Condition

if TYPE_CHECKING:
    from diffusers import FluxPipeline


class Flux(Pipeline):
    """Text as a T5 sees it, and one vector of a CLIP; `max_sequence_length` is the T5's."""

    readers = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")

    def __init__(
        self,
        *,
        resolution: int = 512,
        max_sequence_length: int = 512,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
        embedded_guidance: float | None = 3.5,
    ) -> None:
        """`embedded_guidance`: a number that a distilled transformer reads beside the noise level.
        It is no classifier-free guidance. None: of transformers that read none."""
        super().__init__(
            resolution=resolution,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
        )
        self.embedded_guidance = embedded_guidance

    def family(self) -> Family:
        from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel

        return Family(pipeline=FluxPipeline, transformer=FluxTransformer2DModel, vae=AutoencoderKL)

    def fit(self, network: nn.Module) -> nn.Module:
        given = self.embedded_guidance
        if network.config.guidance_embeds != (given is not None):
            does, instead = ("no", "null") if given is not None else ("such a", "3.5")
            raise ValueError(
                f"model.adapter.embedded_guidance={'null' if given is None else given}, but the "
                f"transformer of model.path={self.folder} reads {does} number; set it to {instead}"
            )
        return network

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels // 4)

    def condition(self, pipeline: FluxPipeline, text: str, device: torch.device) -> Condition:
        states, pooled, _ = pipeline.encode_prompt(
            prompt=text, device=device, max_sequence_length=self.max_sequence_length
        )
        return {"states": states[0], "pooled": pooled[0]}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, guidance = network.x_embedder.weight.dtype, self.embedded_guidance
        states, (height, width) = condition["states"].to(dtype), x.shape[2:]
        patches = network(
            hidden_states=packed(x.to(dtype)),
            timestep=sigma,
            guidance=None if guidance is None else torch.full_like(sigma, guidance),
            encoder_hidden_states=states,
            pooled_projections=condition["pooled"].to(dtype),
            txt_ids=states.new_zeros(states.shape[1], 3),
            img_ids=places(height // 2, width // 2).to(states),
            return_dict=False,
        )[0]
        return unpacked(patches, height, width)


def places(height: int, width: int) -> Tensor:
    """Of patches, row by row: [height * width, 3], the first coordinate 0 and of nothing."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1)
