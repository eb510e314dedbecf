"""Embedded guidance: a number that a distilled transformer reads beside the noise level."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.pipelines import Pipeline


class EmbeddedGuidance(Pipeline):
    """A family some of whose transformers were distilled so."""

    def __init__(
        self,
        *,
        resolution: int = 512,
        width: int | None = None,
        max_sequence_length: int = 512,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",
        images: int | None = None,
        embedded_guidance: float | None = 3.5,
    ) -> None:
        """`embedded_guidance`: a number that a distilled transformer reads beside the noise level.
        It is no classifier-free guidance. None: of transformers that read none."""
        super().__init__(
            resolution=resolution,
            width=width,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
            images=images,
        )
        self.embedded_guidance = embedded_guidance

    def fit(self, network: nn.Module) -> nn.Module:
        given = self.embedded_guidance
        if network.config.guidance_embeds != (given is not None):
            does, instead = ("no", "null") if given is not None else ("such a", "3.5")
            raise ValueError(
                f"model.adapter.embedded_guidance={'null' if given is None else given}, but the "
                f"transformer of model.path={self.folder} reads {does} number; set it to {instead}"
            )
        return network

    def guidance(self, sigma: Tensor) -> Tensor | None:
        """[N], for every row the same; None: the transformer reads none."""
        given = self.embedded_guidance
        return None if given is None else torch.full_like(sigma, given)
