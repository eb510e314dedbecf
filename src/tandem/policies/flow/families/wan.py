"""Wan 2.1 and 2.2, text to video, from any folder in the layout of `WanPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.folders import read_index
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import WanPipeline


class Wan(Films):
    """Text as a UMT5 reads it, zeros behind its end."""

    family = Family(
        pipeline="WanPipeline",
        transformer="WanTransformer3DModel",
        vae="AutoencoderKLWan",
        model="wan2_1_1_3b",
    )
    even = False
    readers = ("text_encoder", "tokenizer")
    lora_targets = tuple(f"attn{n}.to_{x}" for n in (1, 2) for x in ("q", "k", "v", "out.0"))

    def fit(self, network: nn.Module) -> nn.Module:
        index = read_index(self.folder)
        self.times_of_tokens = bool(index.get("expand_timesteps"))
        if index.get("boundary_ratio") is not None:
            raise ValueError(
                f"model.path={self.folder} has two transformers, one for each part of the noise "
                "levels, and one is trained; take Wan 2.1, or Wan 2.2 TI2V-5B"
            )
        return network

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(channels=config.in_channels, patch=config.patch_size[1])

    def blank(self, rows: int) -> Condition:
        shape = rows, self.text_tokens, self.network.config.text_dim
        return {"states": torch.empty(shape, device="meta")}

    def condition(
        self, pipeline: WanPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, _ = pipeline.encode_prompt(
            asked.text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
            device=device,
        )
        return {"states": states[0]}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """It counts noise levels in thousandths; Wan 2.2 TI2V reads one for every token."""
        dtype, time = network.patch_embedding.weight.dtype, 1000 * sigma
        if self.times_of_tokens:
            tokens = x[0, 0].numel() // self.geometry().patch ** 2
            time = time[:, None].expand(-1, tokens)
        return network(
            hidden_states=x.to(dtype),
            timestep=time,
            encoder_hidden_states=condition["states"].to(dtype),
            return_dict=False,
        )[0]

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        config = network.config
        return network.norm_out, config.num_attention_heads * config.attention_head_dim
