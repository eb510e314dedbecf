"""Qwen-Image, loaded from a folder in the layout of `QwenImagePipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.dynamics.guidance import guide, rescale
from tandem.policies.flow.families import texts
from tandem.policies.flow.families.images import input_latents
from tandem.policies.flow.families.patches import pack, unpack
from tandem.policies.flow.families.pipelines import Family, Geometry, Pipeline
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import QwenImagePipeline


class QwenImage(Pipeline):
    """Prompts are Qwen2.5-VL states of a template."""

    family = Family(
        pipeline="QwenImagePipeline",
        transformer="QwenImageTransformer2DModel",
        vae="AutoencoderKLQwenImage",
        model="qwen_image",
        siblings=("QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"),
    )
    readers = ("text_encoder", "tokenizer")

    def fit(self, network: nn.Module) -> nn.Module:
        last = network.transformer_blocks[-1]  # its text output is unused
        for layer in (last.attn.to_add_out, last.txt_mlp):
            layer.requires_grad_(False)
        return network

    def blank(self, rows: int) -> Condition:
        width = self.network.config.joint_attention_dim
        return texts.blank(rows, self.text_tokens, width) | self.blank_images(rows)

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels // 4)

    @property
    def scale(self) -> int:
        return 2 ** len(self.vae.temperal_downsample)

    def condition(
        self, pipeline: QwenImagePipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        most = self.max_sequence_length
        (states,), _ = pipeline.encode_prompt(
            prompt=asked.text, device=device, max_sequence_length=most
        )
        return texts.pad_states(states, most)

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, pictures = network.img_in.weight.dtype, (x, *input_latents(condition))
        sizes = [(1, *(side // 2 for side in one.shape[2:])) for one in pictures]
        patches = network(
            hidden_states=torch.cat([pack(one.to(dtype)) for one in pictures], 1),
            timestep=sigma,
            encoder_hidden_states=condition["states"].to(dtype),
            encoder_hidden_states_mask=condition["mask"],
            img_shapes=[sizes] * len(x),
            return_dict=False,
        )[0]
        own = sizes[0][1] * sizes[0][2]
        return unpack(patches[:, :own], *x.shape[2:])

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float, sigma: Tensor) -> Tensor:
        """Guidance that keeps the norm of each patch's prompted velocity.

        Shape: [B, N, D] of both.
        """
        way = guide(prompted, unprompted, scale=scale)
        return unpack(rescale(pack(prompted), pack(way)), *way.shape[2:])

    def decode_raw(self, raw: Tensor) -> Tensor:
        """The VAE is one of films: a picture is a film of one frame."""
        return self.vae.decode(raw[:, :, None]).sample[:, :, 0]

    def encode_raw(self, pixels: Tensor) -> Tensor:
        return self.vae.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0]
