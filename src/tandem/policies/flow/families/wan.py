"""Wan 2.1 and 2.2 and SkyReels-V2, text to video, loaded from folders of their pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.experts import Experts
from tandem.policies.flow.families.folders import diffusers_class, read_index
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import WanPipeline


class Wan(Experts):
    """Prompts are UMT5 states, padded with zeros. Wan 2.2 A14B has two transformers."""

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
        self.times_of_tokens = bool(read_index(self.folder).get("expand_timesteps"))
        return super().fit(network)

    @property
    def stride(self) -> int:
        return self.vae.config.scale_factor_temporal

    @property
    def scale(self) -> int:
        return self.vae.config.scale_factor_spatial

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(channels=config.out_channels, patch=config.patch_size[1])

    def blank(self, rows: int) -> Condition:
        shape = rows, self.text_tokens, self.network.config.text_dim
        return {"states": torch.empty(shape, device="meta")}

    def condition(
        self, pipeline: WanPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        # The other pipelines' version requires ftfy.
        read = diffusers_class("WanPipeline")._get_t5_prompt_embeds
        most = self.max_sequence_length
        return {"states": read(pipeline, asked.text, max_sequence_length=most, device=device)[0]}

    def of_one(self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """The velocity of one transformer; Wan 2.2 TI2V takes a timestep per token."""
        time = 1000 * sigma
        if self.times_of_tokens:
            tokens = x[0, 0].numel() // self.geometry().patch ** 2
            time = time[:, None].expand(-1, tokens)
        return self.call_transformer(network, x, time, condition)

    def call_transformer(
        self, network: nn.Module, x: Tensor, time: Tensor, condition: Condition
    ) -> Tensor:
        """The output of a transformer, [N, channels, ...]."""
        dtype = network.patch_embedding.weight.dtype
        seen = condition.get("seen")
        return network(
            hidden_states=x.to(dtype),
            timestep=time,
            encoder_hidden_states=condition["states"].to(dtype),
            encoder_hidden_states_image=None if seen is None else seen.to(dtype),
            return_dict=False,
        )[0]


class SkyReelsV2(Wan):
    """SkyReels-V2, text to video, in the layout of `SkyReelsV2Pipeline`: called like Wan 2.1."""

    family = Family(
        pipeline="SkyReelsV2Pipeline",
        transformer="SkyReelsV2Transformer3DModel",
        vae="AutoencoderKLWan",
        model="skyreels_v2_14b",
    )
