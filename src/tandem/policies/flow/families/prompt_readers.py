"""The prompt encoders of a pipeline: loaded for the first prompt and freed after the last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.policies.flow.components import TRANSFORMER
from tandem.policies.flow.embeddings import fingerprint_of, read_code
from tandem.policies.flow.families.folders import diffusers_class, outline_reader
from tandem.policies.flow.records import Condition, PromptInput
from tandem.policies.weights import bring_when_called, move

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

    from tandem.policies.flow.families.pipelines import Family

PLAIN = (str, int, float, tuple, list, torch.dtype)  # attributes that are numbers, not parts


class PromptReaders(ABC):
    """Encodes the text and images of a prompt as a transformer's condition."""

    family: Family
    folder: Path
    network: nn.Module
    vae: nn.Module
    images: int
    image_shape: tuple[int, ...]
    max_sequence_length: int
    encoder_dtype: torch.dtype
    offload: frozenset[str]
    readers: tuple[str, ...]  # the parts of a folder that turn text into conditions
    optional: frozenset[str] = frozenset()  # readers that a folder may lack
    trained: tuple[str, ...] = ()  # readers that are networks of the policy
    unread: tuple[str, ...] = ()  # other parts, not loaded to save memory

    @abstractmethod
    def condition(
        self, pipeline: DiffusionPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        """The condition of one input, always of the same shapes, so that conditions stack."""

    @abstractmethod
    def transformers(self) -> tuple[str, ...]:
        """The folders of the transformers."""

    def fingerprint(self) -> str | None:
        """A hash of all that conditions depend on: files of the folder, the code of the family and
        of its libraries, and the numbers of the adapter. None: of a class that is in no file."""
        import diffusers
        import transformers

        own = type(self)
        if (code := read_code(own)) is None:
            return None
        numbers = sorted((name, x) for name, x in vars(self).items() if isinstance(x, PLAIN))
        versions = diffusers.__version__, transformers.__version__
        parts = (*self.readers, "vae") if self.images else self.readers
        return fingerprint_of(self.folder, parts, own.__qualname__, code, versions, numbers)

    def refuse(self, text: str) -> None:
        return None  # longer texts are truncated

    @torch.no_grad()
    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        pipeline = self.reading(device)
        for asked in inputs:
            yield self.condition(pipeline, asked, device)

    def reading(self, device: torch.device) -> DiffusionPipeline:
        """The pipeline with its encoders on `device` and nothing else loaded."""
        absent = [name for name in self.readers if not (self.folder / name).is_dir()]
        unread = dict.fromkeys([*self.unread, *self.transformers(), *absent])
        # Some pipelines read sizes from the transformer (of a missing encoder) and from the VAE.
        given = unread | {TRANSFORMER: self.network, "vae": self.vae, **self.own_readers()}
        pipeline = diffusers_class(self.family.pipeline).from_pretrained(
            self.folder, dtype=self.encoder_dtype, use_safetensors=True, **given
        )
        for name in self.readers:
            if isinstance(part := pipeline.components[name], nn.Module):
                place = bring_when_called if "encoders" in self.offload else move
                place(part.requires_grad_(False), device)  # a trained one replaces it
        return pipeline

    def own_readers(self) -> dict[str, object]:
        """Parts that are loaded in another way than the index says."""
        return {}

    def outline_readers(self) -> list[nn.Module]:
        """The frozen encoders, on the meta device."""
        frozen = [part for part in self.readers if part not in self.trained]
        there = [part for part in frozen if (self.folder / part / "config.json").is_file()]
        return [outline_reader(self.folder, part, self.encoder_dtype) for part in there]
