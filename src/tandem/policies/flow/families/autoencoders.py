"""The VAE of a pipeline: latents to pixels and back, in small batches of images or films."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tandem.policies.flow.adapter import Decoding
from tandem.policies.weights import lend

# Of a pass. More take more memory and hardly less time: on an H100 eight images of 512 x 512 took
# 0.93 of the time of two passes of four, and twice the memory.
PIXELS_AT_ONCE = 1024 * 1024


def samples_at_once(pixels: int, decoding: Decoding) -> int:
    """Images or films of so many pixels per pass of a VAE."""
    return max(1, PIXELS_AT_ONCE // pixels) if decoding == "batched" else 1


class Autoencoded:
    """A VAE whose output is std * latent + mean per channel; latents are normalised."""

    vae: nn.Module
    image_shape: tuple[int, ...]
    latent_shape: tuple[int, ...]
    offload: frozenset[str] = frozenset()  # frozen networks kept on the CPU between uses
    decoding: Decoding = "batched"

    def save_memory(self, offload: frozenset[str], decoding: Decoding) -> None:
        self.offload, self.decoding = offload, decoding

    def vae_on(self, device: torch.device) -> AbstractContextManager[None]:
        """The VAE on `device` for the duration of a call."""
        return lend(self.vae, device, returns="vae" in self.offload)

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std of each channel of the VAE's output: [C, 1, 1] for images, [C, 1, 1, 1]
        for films."""
        config = self.vae.config
        if config.get("latents_mean") is None:
            mean, std = [config.get("shift_factor") or 0.0], [1 / config.scaling_factor]
        else:
            mean, std = config.latents_mean, config.latents_std
        axes = (1,) * (like.ndim - 2)
        return like.new_tensor(mean).view(-1, *axes), like.new_tensor(std).view(-1, *axes)

    def decode_raw(self, raw: Tensor) -> Tensor:
        """Unnormalised latents [N, *latent_shape] -> [N, 3, ...] in [-1, 1]."""
        return self.vae.decode(raw).sample

    def encode_raw(self, pixels: Tensor) -> Tensor:
        """[N, *latent_shape]: the mode of the VAE's posterior, not a sample."""
        return self.vae.encode(pixels).latent_dist.mode()

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        return self.pixels(x0).cpu()

    @torch.no_grad()
    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, ..., H, W, 3], on the device of the latents."""
        # Some are painted larger than in training.
        area = math.prod(x0.shape[2:]) / math.prod(self.latent_shape[1:])
        at_once = samples_at_once(int(area * math.prod(self.image_shape[:-1])), self.decoding)
        with self.vae_on(x0.device):
            mean, std = self.statistics(x0.float())
            raw = (x0.float() * std + mean).split(at_once)
            parts = [self.decode_raw(part) for part in raw]
        pixels = ((torch.cat(parts).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.movedim(1, -1).contiguous()

    @torch.no_grad()
    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """uint8 [N, ..., H, W, 3] -> float32 [N, *latent_shape]."""
        pixels = images.to(device).movedim(-1, 1).float() / 127.5 - 1
        at_once = samples_at_once(math.prod(images.shape[1:-1]), self.decoding)
        with self.vae_on(device):
            raw = torch.cat([self.encode_raw(part) for part in pixels.split(at_once)])
            mean, std = self.statistics(raw)
        return (raw - mean) / std


class PatchedAutoencoded(Autoencoded):
    """A VAE whose latent pixels are 2 x 2 patches of its output, normalised by the running
    statistics of its batch norm."""

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        seen, eps = self.vae.bn, self.vae.config.batch_norm_eps
        mean, std = seen.running_mean, (seen.running_var + eps).sqrt()
        return mean.to(like)[:, None, None], std.to(like)[:, None, None]

    def decode_raw(self, raw: Tensor) -> Tensor:
        return super().decode_raw(pixel_shuffle(raw, 2))

    def encode_raw(self, pixels: Tensor) -> Tensor:
        return pixel_unshuffle(super().encode_raw(pixels), 2)
