"""Video families with one transformer, or one for each of two ranges of noise levels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from tandem.policies.flow.components import TRANSFORMER, Components, by_noise_level, is_above
from tandem.policies.flow.families.films import Films
from tandem.policies.flow.families.folders import read_index
from tandem.policies.flow.records import Condition


class Experts(Films):
    """If the folder's index names a boundary, a second transformer handles the noise levels below
    it, with a guidance scale of its own."""

    def __init__(
        self,
        *,
        resolution: int = 480,
        width: int | None = None,
        frames: int = 81,
        max_sequence_length: int = 512,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
        guidance_scale_2: float | None = None,
    ) -> None:
        """`guidance_scale_2`: guidance scale of the second transformer, wherever the first is
        guided. None: the same scale."""
        super().__init__(
            resolution=resolution,
            width=width,
            frames=frames,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
        )
        self.guidance_scale_2 = guidance_scale_2
        if guidance_scale_2 is not None and guidance_scale_2 < 1:
            raise ValueError(
                f"model.adapter.guidance_scale_2={guidance_scale_2:g} must be at least 1 "
                "(no guidance)"
            )

    @property
    def boundary(self) -> float | None:
        """The lowest noise level of the first transformer; None: there is no other."""
        return read_index(self.folder).get("boundary_ratio")

    def transformers(self) -> tuple[str, ...]:
        return (TRANSFORMER,) if self.boundary is None else (TRANSFORMER, f"{TRANSFORMER}_2")

    def fit(self, network: nn.Module) -> nn.Module:
        if self.boundary is None and self.guidance_scale_2 is not None:
            raise ValueError(
                f"model.adapter.guidance_scale_2={self.guidance_scale_2:g}: "
                f"model.path={self.folder} has one transformer; leave it null"
            )
        return network

    @abstractmethod
    def of_one(self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """The velocity of one transformer: [N, *latent_shape], sigma [N]."""

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        if not isinstance(network, Components):
            return self.of_one(network, x, sigma, condition)

        def ask(part: nn.Module, rows: Tensor) -> Tensor:
            given = {name: value[rows] for name, value in condition.items()}
            return self.of_one(part, x[rows], sigma[rows], given)

        return by_noise_level(tuple(network.values()), sigma, self.boundary, ask)

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float, sigma: Tensor) -> Tensor:
        first = super().guide(prompted, unprompted, scale=scale, sigma=sigma)
        if self.guidance_scale_2 is None:
            return first
        own = self.guidance_scale_2
        second = super().guide(prompted, unprompted, scale=own, sigma=sigma)
        above = is_above(sigma, self.boundary).view(-1, *[1] * (first.ndim - 1))
        return torch.where(above, first, second)

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        if isinstance(network, Components):
            raise ValueError(
                f"model.path={self.folder} has two transformers, but a critic reads the states of "
                "one; choose an algorithm without a critic, such as algorithm=flow_grpo"
            )
        return super().reader(network)
