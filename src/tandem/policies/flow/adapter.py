"""The adapter protocol: everything that differs between families of flow models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tandem.policies.flow.records import Condition, PromptInput

# Several pictures per pass; one per pass; or overlapping tiles whose seams are blended.
Decoding = Literal["batched", "sliced", "tiled"]
SAME_LEVELS = 5e-3  # largest difference between noise levels that count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The size of a picture or a film as the transformer sees it."""

    latent_shape: tuple[int, ...]
    tokens: int


class Adapter(Protocol):
    """One family of models. It holds no trained weights, and no weights at all before `load`."""

    lora_targets: Sequence[str]  # the layers that get LoRA adapters by default
    only_resolution: int | None  # the only side in pixels that it generates; None: not fixed

    images: int  # input images of every prompt

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of one latent; known after `load`, like everything below."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of one picture and of one prompt, as the transformer sees them."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of a picture, H, W, 3, or of a film, F, H, W, 3."""

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        """The canvas of pictures with a side, or a height and width, in pixels, and of films with
        so many frames; None: as in `image_shape`. Raises ValueError for an unsupported size."""

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """The transformer, from a folder if one is given. dtype None: as saved."""

    def fingerprint(self) -> str | None:
        """A key of the prompt encoders for caching; None: too fast to be worth caching."""

    def refuse(self, text: str) -> str | None:
        """The reason why this text cannot be encoded; None if it can."""

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        """Encode each input separately, so that the result depends on nothing else. Encoders are
        loaded for the first input and freed after the last."""

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """The predicted velocity, noise - x0: [N, *latent_shape], sigma [N]."""

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float, sigma: Tensor) -> Tensor:
        """The guided velocity, from those with and without prompt: [N, *latent_shape] float32,
        sigma [N]."""

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        """The layer whose first input is the last hidden states [N, tokens, H], and H."""

    def decode(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, *image_shape], on the CPU."""

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """uint8 [N, *image_shape] -> float32 [N, *latent_shape]."""

    def save(self, network: nn.Module, folder: Path) -> None:
        """Save a transformer without LoRA adapters, in the folder layout of diffusers."""

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        """Save the LoRA adapters for `load_lora_weights` of diffusers."""


@runtime_checkable
class Outlined(Protocol):
    """An adapter that supports `estimate=true`: it builds its networks without weights."""

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """The network of `load` on torch's meta device, built from configurations alone."""

    def blank(self, rows: int) -> Condition:
        """The conditions of `rows` prompts, [N, ...] each, on the meta device."""

    def other_networks(self) -> Mapping[str, Sequence[nn.Module]]:
        """Other networks, on the meta device: "VAE", which stays loaded, and "encoders", which
        are loaded on demand."""

    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, *image_shape], on the device of the latents."""


@runtime_checkable
class Autoencoding(Protocol):
    """An adapter with a VAE and encoders, which can be offloaded."""

    def save_memory(self, offload: frozenset[str], decoding: Decoding) -> None:
        """Keep the named networks ("vae", "encoders") in host memory between uses, and decode in
        the given way."""


@runtime_checkable
class Distilled(Protocol):
    """An adapter with some checkpoints that do not support classifier-free guidance."""

    distilled: bool


@runtime_checkable
class Teaching(Protocol):
    """An adapter that encodes the prompts of its teachers, whose folders may differ in more than
    their weights."""

    def as_teacher(self) -> Adapter:
        """An adapter for the folder of a teacher, to be loaded. Its `load` refuses other encoders,
        and takes from the folder what a setting of the student cannot say of both."""


@runtime_checkable
class Scheduled(Protocol):
    """An adapter whose folder defines the noise levels of sampling."""

    def own_levels(self, steps: int, tokens: int) -> tuple[Tensor, str | None] | None:
        """The noise levels from noise to 0, [steps + 1], and the flags that select them, if any;
        None: the folder defines none."""

    def even_levels(self, steps: int, tokens: int) -> Tensor | None:
        """Evenly spaced levels with the same shift, as solvers use them: [steps + 1]."""


@runtime_checkable
class SharesLayers(Protocol):
    """An adapter that generates with the layers of the language model that wrote the text."""

    def share(self, layers: nn.Module, tokenizer: Any) -> None:
        """Set the embeddings and blocks that `load` uses; they are trained in place."""
