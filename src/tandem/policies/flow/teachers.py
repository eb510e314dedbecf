"""Teachers of a flow: frozen models of the policy's family, each for the prompts of its sources."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import between
from tandem.contracts.parts import expand_home
from tandem.dynamics.regression import part_of
from tandem.policies.flow.adapter import Adapter, Teaching
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.teachers import Teachers, rows_by_teacher, weights_of
from tandem.policies.weights import Precision
from tandem.types import Prompt

TRANSFORMER = "transformer/config.json"  # of a pipeline


@dataclass(frozen=True, kw_only=True)
class VelocityTeachers(Teachers):
    """The teacher of each source, and the denoising steps at which teachers are queried.

    A teacher is a run directory, or a folder in diffusers' layout.
    """

    of_texts = False

    # Share of the denoising steps, from the first, at which teachers are queried.
    fraction: Annotated[float, between(0, 1, open_low=True)] = 0.99

    def check(self) -> None:
        for source, folder in self.folders.items():
            if (weights_of(folder) / TRANSFORMER).is_file():
                continue
            self.check_run(source)
            there = expand_home(folder).is_dir()
            fault = f"there is no {TRANSFORMER} in it" if there else "there is no such folder"
            raise ValueError(
                f"{self.as_override(source)}: {fault}; give the directory of a finished run of a "
                "flow, or a folder in diffusers' layout"
            )

    def compared_steps(self, steps: int) -> range:
        """The denoising steps at which student and teacher are compared."""
        return range(max(1, part_of(steps, self.fraction)))

    def load(
        self, adapter: Adapter, dtype: torch.dtype | None, precision: Precision
    ) -> LoadedVelocityTeachers:
        """`adapter`: the student's, after `load`.

        Raises ValueError for a teacher of another family or size, or with other encoders.
        """
        fields = {}
        for source, folder in self.folders.items():
            given = self.as_override(source)
            own = adapter_of_teacher(adapter)
            try:
                network = own.load(str(weights_of(folder)), dtype).requires_grad_(False).eval()
            except ValueError as error:
                raise ValueError(f"{given}: {error}") from None
            if own.latent_shape != adapter.latent_shape:
                raise ValueError(
                    f"{given}: its latents are {_format_size(own)}, but those of the policy are "
                    f"{_format_size(adapter)}; choose a teacher with latents of the same size"
                )
            fields[source] = VelocityModel(network, own, precision=precision)
        return LoadedVelocityTeachers(fields)


def adapter_of_teacher(adapter: Adapter) -> Adapter:
    """An adapter to be loaded: one remembers the folder that it loaded last."""
    return adapter.as_teacher() if isinstance(adapter, Teaching) else copy.copy(adapter)


class LoadedVelocityTeachers:
    """The teachers with their weights."""

    def __init__(self, fields: Mapping[str, VelocityModel]) -> None:
        self.fields = fields

    def of(
        self, prompts: Sequence[Prompt], device: torch.device
    ) -> Iterator[tuple[VelocityModel, Tensor]]:
        """Each teacher that is needed, moved to `device`, and the indices of its prompts:
        [n] int64."""
        for source, places in rows_by_teacher(prompts, self.fields):
            self.fields[source].network.to(device)
            yield self.fields[source], torch.tensor(places, device=device)


def _format_size(adapter: Adapter) -> str:
    return " x ".join(map(str, adapter.latent_shape))
