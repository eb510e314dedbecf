"""The shared part of diffusers' families: a folder in its layout, texts through its encoders,
pictures through its VAE."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem.dynamics.guidance import guide
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.embeddings import fingerprint_of
from tandem.policies.flow.families.folders import (
    CONFIGURATIONS,
    loaded,
    outlined,
    outlined_reader,
    pipeline_folder,
    refuse_pickled_readers,
    without_bars,
)
from tandem.policies.flow.lora import ATTENTION, save_lora
from tandem.policies.flow.records import Condition

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

DECODED_AT_ONCE = 8  # pictures; memory, nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Classes of diffusers, under the names that a folder's files have for them."""

    pipeline: type[DiffusionPipeline]
    transformer: type[nn.Module]
    vae: type[nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a transformer cuts a latent picture."""

    channels: int
    patch: int = 2  # latent pixels along a side of a token
    most: int | None = None  # tokens along a side; None: as many as there are


class Pipeline(ABC):
    """Square pictures of `resolution` pixels. A family adds what differs from the others."""

    lora_targets = ATTENTION
    only_resolution = None
    readers: tuple[str, ...]  # the parts of a folder that turn text into conditions
    optional: frozenset[str] = frozenset()  # those of them that a folder may lack

    def __init__(
        self,
        *,
        resolution: int = 512,
        max_sequence_length: int = 256,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        """`max_sequence_length`: tokens of a text, which is cut off where it is longer."""
        self.resolution, self.max_sequence_length = resolution, max_sequence_length
        self.encoder_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[encoder_dtype]
        self.image_shape = (resolution, resolution, 3)

    @abstractmethod
    def family(self) -> Family:
        """Imports diffusers, which takes seconds."""

    @abstractmethod
    def geometry(self) -> Geometry:
        """Of the transformer that was loaded."""

    @abstractmethod
    def condition(self, pipeline: DiffusionPipeline, text: str, device: torch.device) -> Condition:
        """Of one text, always of the same shapes, so that conditions stack."""

    @abstractmethod
    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """noise - x0 as the network predicts it: [N, *latent_shape], sigma [N]."""

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """Load the transformer of a folder, and what reads its prompts. Raises ValueError for a
        part that is missing."""
        without_bars()
        self.folder = pipeline_folder(path)
        network = self._read(loaded, dtype or "auto")
        refuse_pickled_readers(self.folder, self.readers)
        return network

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """As `load`, on torch's meta device, of configurations alone; None: float32."""
        without_bars()
        self.folder = pipeline_folder(path, patterns=CONFIGURATIONS)
        return self._read(outlined, dtype or torch.float32)

    def _read(self, read: Callable[..., nn.Module], dtype: torch.dtype | str) -> nn.Module:
        family = self.family()
        self.network = read(self.folder, "transformer", family.transformer, dtype)
        for part in self.readers:
            if part not in self.optional and not (self.folder / part).is_dir():
                raise ValueError(f"model.path={self.folder} has no folder {part}")
        self.vae = read(self.folder, "vae", family.vae, torch.float32).eval()
        own = self.canvas(None)
        self.latent_shape, self.tokens = own.latent_shape, (own.tokens, self.text_tokens)
        return self.fit(self.network)

    def fit(self, network: nn.Module) -> nn.Module:
        """The transformer as its family wants it. Raises ValueError for one that does not fit."""
        return network

    def blank(self, rows: int) -> Condition:
        """What `encode` gives of so many prompts, without numbers: on the meta device."""
        config, width = self.network.config, self.text_tokens
        return {
            "states": torch.empty(rows, width, config.joint_attention_dim, device="meta"),
            "pooled": torch.empty(rows, config.pooled_projection_dim, device="meta"),
        }

    def beside(self) -> dict[str, list[nn.Module]]:
        """What an outline holds beside the transformer, by what it does."""
        return {"VAE": [self.vae], "encoders": self._encoders()}

    def _encoders(self) -> list[nn.Module]:
        there = [part for part in self.readers if (self.folder / part / "config.json").is_file()]
        return [outlined_reader(self.folder, part, self.encoder_dtype) for part in there]

    @property
    def text_tokens(self) -> int:
        """Of one prompt, as the transformer sees it."""
        return self.max_sequence_length

    @property
    def scale(self) -> int:
        """Pixels along a side of one of a latent."""
        return 2 ** (len(self.vae.config.block_out_channels) - 1)

    def canvas(self, resolution: int | None) -> Canvas:
        flag = "model.adapter" if resolution is None else "evaluation"
        pixels, own = resolution or self.resolution, self.geometry()
        step = self.scale * own.patch
        at_most = None if own.most is None else step * own.most
        if pixels % step or pixels < step or (at_most is not None and pixels > at_most):
            raise ValueError(
                f"{flag}.resolution={pixels} does not fit model.path={self.folder}: it must be a "
                f"multiple of {step}{'' if at_most is None else f', at most {at_most}'}"
            )
        side = pixels // self.scale
        return Canvas(latent_shape=(own.channels, side, side), tokens=(side // own.patch) ** 2)

    def fingerprint(self) -> str:
        own = (self.max_sequence_length, self.encoder_dtype)
        return fingerprint_of(self.folder, self.readers, *own)

    def refuse(self, text: str) -> None:
        return None  # what is too long is cut off

    @torch.no_grad()
    def encode(self, texts: Sequence[str], device: torch.device) -> Iterator[Condition]:
        pipeline = self._reading(device)
        for text in texts:
            yield self.condition(pipeline, text, device)

    def _reading(self, device: torch.device) -> DiffusionPipeline:
        """The pipeline with its encoders on that device, and without a VAE."""
        absent = {name: None for name in self.readers if not (self.folder / name).is_dir()}
        # Some ask the transformer how wide the states are of an encoder that was left out.
        given = {"vae": None, "transformer": self.network, **absent}
        pipeline = self.family().pipeline.from_pretrained(
            self.folder, dtype=self.encoder_dtype, use_safetensors=True, **given
        )
        for name in self.readers:
            if isinstance(part := pipeline.components[name], nn.Module):
                part.to(device)
        return pipeline

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float) -> Tensor:
        return guide(prompted, unprompted, scale=scale)

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.norm_out, network.inner_dim

    def decoded(self, latents: Tensor) -> Tensor:
        """[N, 3, H, W] in [-1, 1]."""
        config = self.vae.config
        latents = latents / config.scaling_factor + (config.shift_factor or 0.0)
        return self.vae.decode(latents).sample

    def encoded(self, pixels: Tensor) -> Tensor:
        """[N, *latent_shape]: the mean of what the VAE gives, without its noise."""
        config = self.vae.config
        mean = self.vae.encode(pixels).latent_dist.mode()
        return (mean - (config.shift_factor or 0.0)) * config.scaling_factor

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        return self.pixels(x0).cpu()

    @torch.no_grad()
    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, H, W, 3], where the latents are."""
        self.vae.to(x0.device)
        parts = [self.decoded(part) for part in x0.float().split(DECODED_AT_ONCE)]
        pixels = ((torch.cat(parts).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1).contiguous()

    @torch.no_grad()
    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        self.vae.to(device)
        pixels = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
        return torch.cat([self.encoded(part) for part in pixels.split(DECODED_AT_ONCE)])

    def save(self, network: nn.Module, folder: Path) -> None:
        """The whole pipeline: the other parts are copied from where they were loaded."""
        without = shutil.ignore_patterns("transformer", "lora", "ema", ".*")  # not a run's own
        shutil.copytree(self.folder, folder, ignore=without, dirs_exist_ok=True)
        network.save_pretrained(folder / "transformer")

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        save_lora(network, folder, self.family().pipeline)
