"""LTX-2: films with their sound, from any folder in the layout of `LTX2Pipeline`."""

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
    """A latent is a row of tokens: those of the film, and behind them those of its sound. Both are
    sampled and trained, and the film is what rewards see. Text as layers of a Gemma 3 read it."""

    family = Family(
        pipeline="LTX2Pipeline",
        transformer="LTX2VideoTransformer3DModel",
        vae="AutoencoderKLLTX2Video",
        model="ltx_2",
    )
    readers = ("text_encoder", "tokenizer", "connectors")
    unread = ("audio_vae", "vocoder", "processor", "prompt_enhancer", "duration_head")
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0")
    # Frames, height and width of a latent film by the number of its tokens, with those of sound.
    sizes = MappingProxyType({})

    def fit(self, network: nn.Module) -> nn.Module:
        own = network.config
        if own.in_channels != own.audio_in_channels:
            raise ValueError(
                f"model.path={self.folder}: tokens of its films have {own.in_channels} channels, "
                f"and those of its sound {own.audio_in_channels}; take one where they are the same"
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
                f"films of {films} have {tokens} tokens each, by which this family tells their "
                "sizes apart; take another height, width or number of frames for one of them"
            )
        self.sizes = {**self.sizes, tokens: tuple(size)}
        return Canvas(latent_shape=(tokens, channels), tokens=film.tokens)

    def in_pixels(self, size: Sequence[int]) -> str:
        """Frames, height and width of a film whose latent has that size."""
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
        """[N, tokens, channels] -> uint8 [N, frames, H, W, 3], where the latents are."""
        size = self.sizes[x0.shape[1]]
        return super().pixels(x0[:, : torch.Size(size).numel()].mT.unflatten(2, size))

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """Raises ValueError: [N, frames, H, W, 3] is no sound."""
        raise ValueError(
            "a film of a demonstration has no sound, which this model makes too; take an algorithm "
            "that learns from its own samples, such as algorithm=flow_grpo"
        )

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        config = network.config
        return network.norm_out, config.num_attention_heads * config.attention_head_dim
