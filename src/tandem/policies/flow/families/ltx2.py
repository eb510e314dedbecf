"""LTX-2, text to video with sound, loaded from a folder in the layout of `LTX2Pipeline`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.ltx import LTX
from tandem.policies.flow.families.pipelines import Family
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import LTX2Pipeline

FRAMES_PER_SECOND = 24


class LTX2(LTX):
    """Video and sound are sampled and trained; rewards see the video only. In a latent, the tokens
    of the sound and zeros behind them are further channels of the video. Prompts are states of
    the layers of a Gemma 3."""

    family = Family(
        pipeline="LTX2Pipeline",
        transformer="LTX2VideoTransformer3DModel",
        vae="AutoencoderKLLTX2Video",
        model="ltx_2",
    )
    readers = ("text_encoder", "tokenizer", "connectors")
    unread = ("audio_vae", "vocoder", "processor", "prompt_enhancer", "duration_head")

    def sound(self, frames: int) -> tuple[int, int]:
        """Tokens and channels of the sound of so many latent frames."""
        own, seconds = self.network.config, (1 + self.stride * (frames - 1)) / FRAMES_PER_SECOND
        of_second = own.audio_sampling_rate / own.audio_hop_length / own.audio_scale_factor
        return round(seconds * of_second), own.audio_in_channels

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        video = super().canvas(resolution, frames)
        channels, *size = video.latent_shape
        channels += math.ceil(math.prod(self.sound(size[0])) / video.tokens)
        return Canvas(latent_shape=(channels, *size), tokens=video.tokens)

    def blank(self, rows: int) -> Condition:
        config, most = self.network.config, self.text_tokens
        states = torch.empty(rows, most, config.caption_channels, device="meta")
        return {"states": states, "sound": states, "mask": torch.ones(rows, most, device="meta")}

    def condition(
        self, pipeline: LTX2Pipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        most = self.max_sequence_length
        states, mask, _, _ = pipeline.encode_prompt(
            asked.text, do_classifier_free_guidance=False, max_sequence_length=most, device=device
        )
        said = pipeline.connectors(states, mask, padding_side=pipeline.tokenizer.padding_side)
        return {name: x[0] for name, x in zip(("states", "sound", "mask"), said, strict=True)}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        dtype, (frames, height, width) = network.proj_in.weight.dtype, x.shape[2:]
        channels, sound = network.config.in_channels, self.sound(frames)
        video, rest = x[:, :channels].flatten(2).mT, x[:, channels:].flatten(1)
        audio, padding = rest.tensor_split([math.prod(sound)], 1)
        video, audio = network(
            hidden_states=video.to(dtype),
            audio_hidden_states=audio.unflatten(1, sound).to(dtype),
            encoder_hidden_states=condition["states"].to(dtype),
            audio_encoder_hidden_states=condition["sound"].to(dtype),
            timestep=1000 * sigma,
            sigma=1000 * sigma,
            encoder_attention_mask=condition["mask"],
            audio_encoder_attention_mask=condition["mask"],
            num_frames=frames,
            height=height,
            width=width,
            audio_num_frames=sound[0],
            use_cross_timestep=True,
            return_dict=False,
        )
        # The padding's data is 0, which this velocity predicts without an error.
        rest = torch.cat([audio.flatten(1), padding / sigma[:, None]], 1)
        return torch.cat([video.mT.flatten(1), rest], 1).view_as(x)

    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, frames, H, W, 3], on the device of the latents."""
        return super().pixels(x0[:, : self.geometry().channels])

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """Raises ValueError: [N, frames, H, W, 3] has no sound."""
        raise ValueError(
            "demonstrations have no sound, but this model generates sound too; choose an algorithm "
            "that trains on its own samples, such as algorithm=flow_grpo"
        )
