"""Frozen models of the policy's own family, each asked about the prompts of its sources."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import between
from tandem.dynamics.regression import part_of
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.weights import Precision
from tandem.types import Prompt

OTHERS = "others"  # the teacher of every source that has none of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Who teaches what, and where on the way from noise to a picture."""

    # Source, or "others" -> a run directory, or a folder in diffusers' layout.
    folders: Mapping[str, str]
    # Of the denoising steps, from the first on, at which they are asked.
    fraction: Annotated[float, between(0, 1, open_low=True)] = 0.99

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("algorithm.teachers.folders={}: name one folder or more")

    def kept(self, steps: int) -> range:
        """The denoising steps from which a student and its teacher are compared."""
        return range(max(1, part_of(steps, self.fraction)))

    def load(
        self, adapter: Adapter, dtype: torch.dtype | None, precision: Precision
    ) -> TeacherModels:
        """`adapter`: the student's, by now with its weights.

        Raises ValueError for a teacher of another family or size.
        """
        fields = {}
        for source, folder in self.folders.items():
            given = f"algorithm.teachers.folders.{source}={folder}"
            own = copy.copy(adapter)  # an adapter remembers the folder that it loaded last
            try:
                network = own.load(str(weights_of(folder)), dtype).requires_grad_(False).eval()
            except ValueError as error:
                raise ValueError(f"{given}: {error}") from None
            if own.latent_shape != adapter.latent_shape:
                raise ValueError(
                    f"{given}: its latent pictures are {_sized(own)}, and those of the policy "
                    f"{_sized(adapter)}; a teacher is asked about the policy's own"
                )
            fields[source] = VelocityModel(network, own, precision=precision)
        return TeacherModels(fields)


class TeacherModels:
    """The teachers with their weights."""

    def __init__(self, fields: Mapping[str, VelocityModel]) -> None:
        self.fields = fields

    def of(
        self, prompts: Sequence[Prompt], device: torch.device
    ) -> Iterator[tuple[VelocityModel, Tensor]]:
        """Each teacher that is asked, by now on that device, and the places of its prompts there:
        [n] int64."""
        sources = [self._of_source(prompt) for prompt in prompts]
        for source in dict.fromkeys(sources):
            places = [i for i, other in enumerate(sources) if other == source]
            self.fields[source].network.to(device)
            yield self.fields[source], torch.tensor(places, device=device)

    def _of_source(self, prompt: Prompt) -> str:
        """The most particular name that fits: the source, its data set, then all others."""
        names = (prompt.source, prompt.source.partition("/")[0], OTHERS)
        found = next((name for name in names if name in self.fields), None)
        if found is None:
            raise ValueError(
                f"nobody teaches the prompts of {prompt.source}: algorithm.teachers.folders has "
                f"{', '.join(self.fields)}; name a folder for it, or one for {OTHERS}"
            )
        return found


def _sized(adapter: Adapter) -> str:
    return " x ".join(map(str, adapter.latent_shape))


def weights_of(folder: str) -> Path:
    """What a run leaves in its directory, or the folder itself."""
    place = Path(folder).expanduser()
    return place / "model" if (place / "model").is_dir() else place
