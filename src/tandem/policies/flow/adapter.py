"""The adapter protocol: all that differs between families of flow models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tandem.policies.flow.records import Condition, PromptInput

# Several pictures at once; one by one; or parts of each that overlap, whose seams are blended.
Decoding = Literal["batched", "sliced", "tiled"]
SAME_LEVELS = 5e-3  # what noise levels that are meant alike may differ by


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """How large a picture or a film is to the transformer."""

    latent_shape: tuple[int, ...]
    tokens: int


class Adapter(Protocol):
    """Knows one family. It holds no trained weights, and no weights at all before `load`."""

    lora_targets: Sequence[str]  # the layers that get adapters if nobody names others
    only_resolution: int | None  # pixels along a side of all it paints; None: it paints others too

    images: int  # pictures that every prompt shows

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Of one latent picture; known after `load`, as all that follows."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Of one picture, and of one prompt, as the transformer sees them."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one picture: H, W, 3; of a film: F, H, W, 3."""

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        """Of pictures with so many pixels along a side, or of that height and width, and of films
        with so many frames; None: as in `image_shape`. A ValueError where there are no such."""

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """The transformer, from a folder if there is one. dtype None: as it was saved."""

    def fingerprint(self) -> str | None:
        """Names what turns text into conditions; None: it is too quick to be worth a file."""

    def refuse(self, text: str) -> str | None:
        """Why this text cannot be read; None if it can."""

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        """Each input on its own, so that its bits depend on nothing else. Encoders are loaded for
        the first and freed after the last."""

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """noise - x0 as the network predicts it: [N, *latent_shape], sigma [N]."""

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float) -> Tensor:
        """One velocity out of two, with and without the prompt: [N, *latent_shape] float32."""

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        """The layer whose first input is the last hidden states [N, tokens, H], and H."""

    def decode(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, *image_shape], on the CPU."""

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        """uint8 [N, *image_shape] -> float32 [N, *latent_shape]."""

    def save(self, network: nn.Module, folder: Path) -> None:
        """A transformer without adapters, in the folder layout of diffusers."""

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        """The adapters of a transformer, as `load_lora_weights` of diffusers reads them."""


@runtime_checkable
class Outlined(Protocol):
    """What `estimate=true` asks of an adapter: its networks without numbers."""

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """As `load`, of configurations alone, on torch's meta device."""

    def blank(self, rows: int) -> Condition:
        """What `encode` gives of so many prompts, [N, ...] each, on the meta device."""

    def beside(self) -> Mapping[str, Sequence[nn.Module]]:
        """Other networks, on the meta device: "VAE", which stays, and "encoders", which come and
        go."""

    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, *image_shape], where the latents are."""


@runtime_checkable
class Autoencoding(Protocol):
    """An adapter with a VAE and encoders beside the transformer, which need not be on a device all
    the time."""

    def save_memory(self, offload: frozenset[str], decoding: Decoding) -> None:
        """From here on "vae" and "encoders", those that are named, lie in host memory while nobody
        asks them, and pictures go through the VAE in that way."""


@runtime_checkable
class Distilled(Protocol):
    """An adapter some of whose folders paint without classifier-free guidance, and only so."""

    distilled: bool


@runtime_checkable
class Scheduled(Protocol):
    """An adapter whose folder says at which noise levels its pictures are made."""

    def own_levels(self, steps: int, tokens: int) -> tuple[Tensor, str | None] | None:
        """From noise to 0, [steps + 1], and the flags that choose them, if there are any; None: it
        says nothing."""

    def even_levels(self, steps: int, tokens: int) -> Tensor | None:
        """Levels at equal distances under the same shift, as solvers space them: [steps + 1]."""


@runtime_checkable
class SharesLayers(Protocol):
    """An adapter that paints with the layers of the language model that wrote the text."""

    def share(self, layers: nn.Module, tokenizer: Any) -> None:
        """What `load` builds on: embeddings and blocks, which are trained as they are here."""
