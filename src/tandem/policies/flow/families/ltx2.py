"""LTX-2, text to video with sound, loaded from a folder in the layout of `LTX2Pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.pipelines import Family, Geometry
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import LTX2Pipeline

FRAMES_PER_SECOND = 24


class LTX2(Films):
    """A latent is a sequence of video tokens followed by audio tokens. Both are sampled and
    trained; rewards see the video only. Prompts are states of the layers of a Gemma 3."""

    family = Family(
        pipeline="LTX2Pipeline",
        transformer="LTX2VideoTransformer3DModel",
        vae="AutoencoderKLLTX2Video",
        model="ltx_2",
    )
    readers = ("text_encoder", "tokenizer", "connectors")
    unread = ("audio_vae", "vocoder", "processor", "prompt_enhancer", "duration_head")
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0")
    # Latent frames, height and width of a film by its number of tokens, audio included.
    sizes = MappingProxyType({})

    def fit(self, network: nn.Module) -> nn.Module:
        own = network.config
        if own.in_channels != own.audio_in_channels:
            raise ValueError(
                f"model.path={self.folder}: video tokens have {own.in_channels} channels, but "
                f"audio tokens {own.audio_in_channels}; choose a checkpoint where they are equal"
            )
        return network

    @property
    def stride(self) -> int:
        return self.vae.temporal_compression_ratio

    @property
    def scale(self) -> int:
        return self.vae.spatial_compression_ratio

    def geometry(self) -> Geometry:
        return Geometry(channels=self.network.config.in_channels, patch=1)

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        film, own = super().canvas(resolution, frames), self.network.config
        seconds = (self.frames if frames is None else frames) / FRAMES_PER_SECOND
        of_second = own.audio_sampling_rate / own.audio_hop_length / own.audio_scale_factor
        channels, *size = film.latent_shape
        tokens = film.tokens + round(seconds * of_second)
        if (other := self.sizes.get(tokens, tuple(size))) != tuple(size):
            films = " and ".join(self.in_pixels(one) for one in (other, size))
            raise ValueError(
                f"films of {films} both have {tokens} tokens, so their sizes cannot be told apart; "
                "change the height, width or number of frames of one of them"
            )
        self.sizes = {**self.sizes, tokens: tuple(size)}
        return Canvas(latent_shape=(tokens, channels), tokens=film.tokens)

    def in_pixels(self, size: Sequence[int]) -> str:
        """A film's size in pixels and frames, from the size of its latent."""
        frames, height, width = size
        sides = f"{height * self.scale} x {width * self.scale}"
        return f"{sides} in {(frames - 1) * self.stride + 1} frames"

    def blank(self, rows: int) -> Condition:
        config, most = self.network.config, self.text_tokens
        states = torch.empty(rows, most, config.caption_channels, device="meta")
        return {"states": states, "sound": states, "mask": torch.ones(rows, most, device="meta")}

    def condition(
        self, pipeline: LTX2Pipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        states, mask, _, _ = pipeline.encode_prompt(
            asked.text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
            device=device,
        )
        said = pipeline.connectors(states, mask, padding_side=pipeline.tokenizer.padding_side)
        return {name: x[0] for name, x in zip(("states", "sound", "mask"), said, strict=True)}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, (frames, height, width) = network.proj_in.weight.dtype, self.sizes[x.shape[1]]
        film = frames * height * width
        return torch.cat(
            network(
                hidden_states=x[:, :film].to(dtype),
                audio_hidden_states=x[:, film:].to(dtype),
                encoder_hidden_states=condition["states"].to(dtype),
                audio_encoder_hidden_states=condition["sound"].to(dtype),
                timestep=1000 * sigma,
                sigma=1000 * sigma,
                encoder_attention_mask=condition["mask"],
                audio_encoder_attention_mask=condition["mask"],
                num_frames=frames,
                height=height,
                width=width,
                audio_num_frames=x.shape[1] - film,
                use_cross_timestep=True,
                return_dict=False,
            ),
            1,
        )

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        own = self.vae.latents_mean, self.vae.latents_std / self.vae.config.scaling_factor
        mean, std = (x.to(like)[:, None, None, None] for x in own)
        return mean, std

    def pixels(self, x0: Tensor) -> Tensor:
        """[N, tokens, channels] -> uint8 [N, frames, H, W, 3], on the device of the latents."""
        size = self.sizes[x0.shape[1]]
        return super().pixels(x0[:, : torch.Size(size).numel()].mT.unflatten(2, size))

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """Raises ValueError: [N, frames, H, W, 3] has no sound."""
        raise ValueError(
            "demonstrations have no sound, but this model generates sound too; choose an algorithm "
            "that trains on its own samples, such as algorithm=flow_grpo"
        )

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        config = network.config
        return network.norm_out, config.num_attention_heads * config.attention_head_dim
