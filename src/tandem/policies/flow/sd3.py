"""Stable Diffusion 3 and 3.5, from any folder in the layout of `StableDiffusion3Pipeline`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from tandem.hub import one_line
from tandem.policies.flow.folders import pipeline_folder, without_bars
from tandem.policies.flow.prompts import fingerprint_of
from tandem.policies.flow.protocol import Canvas
from tandem.policies.flow.records import Condition
from tandem.policies.flow.sd3_transformer import (
    ATTENTION,
    image_tokens,
    save_lora,
    transformer_from,
    velocity,
)

ENCODERS = tuple(f"{kind}{n}" for kind in ("text_encoder", "tokenizer") for n in ("", "_2", "_3"))
CLIP_TOKENS = 77
DECODED_AT_ONCE = 8


class SD3:
    """Square pictures of `resolution` pixels; text as two CLIPs and a T5 see it."""

    lora_targets = ATTENTION
    only_resolution = None

    def __init__(
        self,
        *,
        resolution: int = 512,
        max_sequence_length: int = 256,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        """`max_sequence_length`: tokens of the T5, which cuts off what is longer."""
        self.resolution, self.max_sequence_length = resolution, max_sequence_length
        self.encoder_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[encoder_dtype]
        self.image_shape = (resolution, resolution, 3)

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        without_bars()
        self.folder = pipeline_folder(path)
        self.network = transformer_from(str(self.folder), dtype)
        self.vae = self._vae()
        own = self.canvas(None)
        self.latent_shape = own.latent_shape
        self.tokens = own.tokens, CLIP_TOKENS + self.max_sequence_length
        return self.network

    def canvas(self, resolution: int | None) -> Canvas:
        flag = "model.adapter" if resolution is None else "evaluation"
        pixels, config = resolution or self.resolution, self.network.config
        scale = 2 ** (len(self.vae.config.block_out_channels) - 1)  # pixels along one of a latent
        step = scale * config.patch_size
        most = step * config.pos_embed_max_size
        if pixels % step or not 0 < pixels <= most:
            raise ValueError(
                f"{flag}.resolution={pixels} does not fit model.path={self.folder}: it must be a "
                f"multiple of {step}, at most {most}"
            )
        side = pixels // scale
        return Canvas(
            latent_shape=(config.in_channels, side, side),
            tokens=image_tokens(side, config.patch_size),
        )

    def _vae(self) -> nn.Module:
        from diffusers import AutoencoderKL

        try:
            vae = AutoencoderKL.from_pretrained(self.folder, subfolder="vae", dtype=torch.float32)
        except Exception as error:  # several libraries' own; all mean that this path is of no use
            raise ValueError(
                f"model.path={self.folder} has no vae that can be loaded: {one_line(error)}"
            ) from None
        return vae.eval()

    def fingerprint(self) -> str:
        return fingerprint_of(self.folder, ENCODERS, self.max_sequence_length, self.encoder_dtype)

    def refuse(self, text: str) -> None:
        return None  # the encoders cut off what is too long

    @torch.no_grad()
    def encode(self, texts: Sequence[str], device: torch.device) -> Iterator[Condition]:
        from diffusers import StableDiffusion3Pipeline

        absent = {name: None for name in ENCODERS if not (self.folder / name).is_dir()}
        # The transformer says how wide the states of a T5 are that was left out.
        pipeline = StableDiffusion3Pipeline.from_pretrained(
            self.folder, vae=None, transformer=self.network, dtype=self.encoder_dtype, **absent
        )
        for encoder in (pipeline.text_encoder, pipeline.text_encoder_2, pipeline.text_encoder_3):
            if encoder is not None:
                encoder.to(device)
        for text in texts:
            with torch.autocast(device.type, enabled=False):
                states, _, pooled, _ = pipeline.encode_prompt(
                    prompt=text,
                    prompt_2=None,
                    prompt_3=None,
                    device=device,
                    do_classifier_free_guidance=False,
                    max_sequence_length=self.max_sequence_length,
                )
            yield {"states": states[0], "pooled": pooled[0]}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        return velocity(network, x, sigma, condition)

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.norm_out, network.inner_dim

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        vae, device = self.vae.to(x0.device), x0.device.type
        latents = x0.float() / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
        with torch.autocast(device, enabled=False):
            parts = [vae.decode(z).sample for z in latents.split(DECODED_AT_ONCE)]
        pixels = ((torch.cat(parts).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1).contiguous().cpu()

    @torch.no_grad()
    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """The mean of what the encoder gives, without its noise."""
        vae = self.vae.to(device)
        pixels = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.autocast(device.type, enabled=False):
            parts = [vae.encode(p).latent_dist.mode() for p in pixels.split(DECODED_AT_ONCE)]
        return (torch.cat(parts) - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor

    def save(self, network: nn.Module, folder: Path) -> None:
        """The whole pipeline: the other parts are copied from where they were loaded."""
        without = shutil.ignore_patterns("transformer", "lora", "ema", ".*")  # not a run's own
        shutil.copytree(self.folder, folder, ignore=without, dirs_exist_ok=True)
        network.save_pretrained(folder / "transformer")

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        save_lora(network, folder)
