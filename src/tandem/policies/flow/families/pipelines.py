"""The base class of diffusers families: loads a pipeline folder and runs its encoders and VAE."""

from __future__ import annotations

import copy
import math
import shutil
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from tandem.contracts import facts_of
from tandem.dynamics.guidance import guide
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.components import TRANSFORMER, Components, components
from tandem.policies.flow.families.folders import (
    CONFIGURATIONS,
    diffusers_class,
    load_network,
    outline_network,
    pipeline_folder,
    refuse_pickled_readers,
    without_bars,
)
from tandem.policies.flow.families.images import ImageConditions
from tandem.policies.flow.families.recognition import refuse_other_pipeline
from tandem.policies.flow.families.scheduler import FolderSchedule
from tandem.policies.flow.families.trained_readers import TrainedReaders
from tandem.policies.flow.families.weight_files import refuse_other_encoders
from tandem.policies.flow.lora import ATTENTION, is_adapted_in, save_lora
from tandem.policies.flow.records import Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Names of diffusers classes; importing the classes takes seconds."""

    pipeline: str
    transformer: str
    vae: str = "AutoencoderKL"
    siblings: tuple[str, ...] = ()  # other pipelines that save the same parts
    model: str | None = None  # the option of `model` for this family
    loader: str | None = None  # a pipeline that loads LoRA weights, if `pipeline` does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a transformer splits a latent into tokens."""

    channels: int
    patch: int = 2  # latent pixels along a side of a token
    most: int | None = None  # the most tokens along a side; None: no limit


class Pipeline(ImageConditions, FolderSchedule, TrainedReaders):
    """Images of `resolution` pixels along a side. A family overrides what differs."""

    lora_targets = ATTENTION
    only_resolution = None
    family: Family
    student: Path | None = None  # the folder whose encoders it shares, of a teacher

    def __init__(
        self,
        *,
        resolution: int = 512,
        width: int | None = None,
        max_sequence_length: int = 256,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",  # dtype of the text encoders
        images: int | None = None,
    ) -> None:
        """`max_sequence_length`: tokens after which a text is truncated. `width`: pixels, if
        `resolution` is the height; None: square. `images`: input images of every prompt; None: the
        fewest that the family accepts."""
        self.resolution, self.max_sequence_length = resolution, max_sequence_length
        self.encoder_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[encoder_dtype]
        shows = facts_of(type(self)).shows
        self.images = shows[0] if images is None else images
        if self.images not in shows:
            raise ValueError(
                f"model.adapter.images={images}: this family accepts {shows[0]} to {shows[-1]} "
                "input images per prompt"
            )
        self.width = resolution if width is None else width
        self.image_shape = (resolution, self.width, 3)

    @abstractmethod
    def geometry(self) -> Geometry:
        """The geometry of the loaded transformer."""

    @abstractmethod
    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """The predicted velocity, noise - x0: [N, *latent_shape], sigma [N]."""

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """Load the transformer and the VAE of a folder. Raises ValueError if a part is missing."""
        without_bars()
        self.folder = pipeline_folder(path)
        refuse_other_pipeline(self.folder, self.family, Pipeline)
        if self.student is not None:
            refuse_other_encoders(self.folder, self.student, self.readers)
        network = self._read(load_network, dtype)
        refuse_pickled_readers(self.folder, self.readers)
        return network

    def as_teacher(self) -> Pipeline:
        own = copy.copy(self)
        own.student = self.folder
        return own

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """The network of `load` on the meta device, from configurations; None: as saved, or float32
        where the folder has no weights."""
        without_bars()
        self.folder = pipeline_folder(path, patterns=CONFIGURATIONS)
        refuse_other_pipeline(self.folder, self.family, Pipeline)
        return self._read(outline_network, dtype)

    def _read(self, read: Callable[..., nn.Module], dtype: torch.dtype | None) -> nn.Module:
        kind, vae = map(diffusers_class, (self.family.transformer, self.family.vae))
        parts = {name: read(self.folder, name, kind, dtype) for name in self.transformers()}
        self.network = parts[TRANSFORMER]
        for part in self.readers:
            if part not in self.optional and not (self.folder / part).is_dir():
                raise ValueError(f"model.path={self.folder} has no folder {part}")
        self.vae = read(self.folder, "vae", vae, torch.float32).eval()
        if self.decoding == "tiled":
            self.vae.enable_tiling()
        own = self.canvas(None)
        self.latent_shape, self.picture_tokens = own.latent_shape, own.tokens
        parts = {name: self.fit(part) for name, part in parts.items()}
        return Components(parts) if len(parts) > 1 else parts[TRANSFORMER]

    def transformers(self) -> tuple[str, ...]:
        """The folders of the transformers; the first one defines the sizes."""
        return (TRANSFORMER,)

    def fit(self, network: nn.Module) -> nn.Module:
        """The transformer, adapted to its family. Raises ValueError for an unsuitable one."""
        return network

    def blank(self, rows: int) -> Condition:
        """The conditions of `rows` prompts on the meta device, in the shapes of `encode`."""
        config, width = self.network.config, self.text_tokens
        return {
            "states": torch.empty(rows, width, config.joint_attention_dim, device="meta"),
            "pooled": torch.empty(rows, config.pooled_projection_dim, device="meta"),
            **self.blank_images(rows),
        }

    def other_networks(self) -> dict[str, list[nn.Module]]:
        """The networks of an outline besides the transformer, by role."""
        return {"VAE": [self.vae], "encoders": self.outline_readers()}

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of a generated image, and of a prompt with its input images."""
        return self.picture_tokens, self.text_tokens + self.shown_tokens

    @property
    def shown_tokens(self) -> int:
        """Tokens of a prompt's input images."""
        return self.images * self.picture_tokens

    @property
    def text_tokens(self) -> int:
        """Text tokens of one prompt, as the transformer sees it."""
        return self.max_sequence_length

    @property
    def scale(self) -> int:
        """Pixels per latent pixel, along a side."""
        return 2 ** (len(self.vae.config.block_out_channels) - 1)

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        if frames is not None:
            raise ValueError(
                f"evaluation.frames={frames}: this model makes pictures; leave it null"
            )
        own, sides = self.geometry(), self._sides(resolution)
        tokens = math.prod(side // own.patch for side in sides)
        return Canvas(latent_shape=(own.channels, *sides), tokens=tokens)

    def _sides(self, resolution: int | tuple[int, int] | None) -> tuple[int, int]:
        """Height and width of a latent. Raises ValueError for a size that does not fit."""
        flag, own, rest = (
            "model.adapter" if resolution is None else "evaluation",
            self.geometry(),
            0,
        )
        if isinstance(resolution, tuple):
            flag, (height, width) = "a size like model.adapter", resolution
        else:
            height = resolution or self.resolution
            width, rest = divmod(height * self.width, self.resolution)
        step = self.scale * own.patch
        at_most = None if own.most is None else step * own.most
        for pixels in (height, width):
            small_enough = at_most is None or pixels <= at_most
            if pixels % step or pixels < step or rest or not small_enough:
                raise ValueError(
                    f"{flag}.resolution={height} does not fit model.path={self.folder}: it must be "
                    f"a multiple of {step}{'' if at_most is None else f', at most {at_most}'}"
                    f"{'' if height == width else f', and so must the width, {width}'}"
                )
        return height // self.scale, width // self.scale

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float, sigma: Tensor) -> Tensor:
        return guide(prompted, unprompted, scale=scale)

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        config = network.config
        return network.norm_out, config.num_attention_heads * config.attention_head_dim

    def save(self, network: nn.Module, folder: Path) -> None:
        """Save the whole pipeline; parts that are not trained are copied from `folder`."""
        parts = components(network)
        without = shutil.ignore_patterns(*parts, "lora", "ema", ".*")  # outputs of a run
        shutil.copytree(self.folder, folder, ignore=without, dirs_exist_ok=True)
        for name, part in parts.items():
            part.save_pretrained(folder / name)

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        """Save LoRA weights; those of a second transformer go to a subfolder of its name."""
        loader = diffusers_class(self.family.loader or self.family.pipeline)
        adapted = {n: x for n, x in components(network).items() if is_adapted_in(x)}
        for name, part in adapted.items():
            save_lora(part, folder if name == TRANSFORMER else folder / name, loader)
