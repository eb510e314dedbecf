"""HunyuanVideo 1.5, text to video, loaded from a folder of `HunyuanVideo15Pipeline`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tandem.policies.flow.families import texts
from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.masks import MasksOfOnes
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import HunyuanVideo15Pipeline


class HunyuanVideo(Films):
    """Prompts are Qwen2.5-VL states of a template, and ByT5 states of the text in quotation
    marks."""

    family = Family(
        pipeline="HunyuanVideo15Pipeline",
        transformer="HunyuanVideo15Transformer3DModel",
        vae="AutoencoderKLHunyuanVideo15",
        model="hunyuan_video_1_5",
        loader="HunyuanVideoPipeline",
    )
    readers = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    letters = 256  # tokens of the ByT5

    def fit(self, network: nn.Module) -> nn.Module:
        last = network.transformer_blocks[-1]  # its text output is unused
        for layer in (last.attn.to_add_out, last.ff_context):
            layer.requires_grad_(False)
        return network

    @property
    def text_tokens(self) -> int:
        return self.max_sequence_length + self.letters

    def geometry(self) -> Geometry:
        config = self.network.config
        return Geometry(channels=config.out_channels, patch=config.patch_size)

    def blank(self, rows: int) -> Condition:
        config = self.network.config
        letters = texts.blank(rows, self.letters, config.text_embed_2_dim)
        read = texts.blank(rows, self.max_sequence_length, config.text_embed_dim)
        return read | {f"{name}_2": x for name, x in letters.items()}

    def condition(
        self, pipeline: HunyuanVideo15Pipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        pipeline.tokenizer_max_length = self.max_sequence_length
        pipeline.tokenizer_2_max_length = self.letters
        names = ("states", "mask", "states_2", "mask_2")
        said = pipeline.encode_prompt(asked.text, device=device)
        return {name: x[0] for name, x in zip(names, said, strict=True)}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """The extra channels and the image tokens hold a first frame and its mask in image-to-video
        models; for text they are 0."""
        dtype = network.x_embedder.proj.weight.dtype
        empty = network.config.in_channels - network.config.out_channels
        picture = torch.zeros(len(x), 1, network.config.image_embed_dim, device=x.device)
        with MasksOfOnes() if x.is_meta else nullcontext():
            return network(
                hidden_states=pad(x, (0, 0) * 3 + (0, empty)).to(dtype),
                timestep=(1000 * sigma).to(dtype),
                encoder_hidden_states=condition["states"].to(dtype),
                encoder_attention_mask=condition["mask"].to(dtype),
                encoder_hidden_states_2=condition["states_2"].to(dtype),
                encoder_attention_mask_2=condition["mask_2"].to(dtype),
                image_embeds=picture.to(dtype),
                return_dict=False,
            )[0]

    def decode_raw(self, raw: Tensor) -> Tensor:
        """The VAE takes one film at a time."""
        return torch.cat([super(HunyuanVideo, self).decode_raw(one) for one in raw.split(1)])

    def encode_raw(self, pixels: Tensor) -> Tensor:
        return torch.cat([super(HunyuanVideo, self).encode_raw(one) for one in pixels.split(1)])
