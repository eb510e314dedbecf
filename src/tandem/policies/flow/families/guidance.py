"""Embedded guidance: the guidance scale that a distilled transformer takes as an input."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tandem.policies.flow.families.pipelines import Pipeline


class GuidanceInput(Pipeline):
    """A family with some guidance-distilled transformers."""

    embedded_guidance: float | None
    usual_guidance: float  # the scale that the family's pipeline uses unless told otherwise

    def fit(self, network: nn.Module) -> nn.Module:
        if self.student is not None:  # one of the two may be distilled to work without this input
            takes, usual = network.config.guidance_embeds, self.usual_guidance
            given = self.embedded_guidance
            self.embedded_guidance = (usual if given is None else given) if takes else None
        given = self.embedded_guidance
        if network.config.guidance_embeds != (given is not None):
            usual = self.usual_guidance
            does, instead = ("takes no", "null") if given is not None else ("needs a", usual)
            raise ValueError(
                f"model.adapter.embedded_guidance={'null' if given is None else given}: the "
                f"transformer of model.path={self.folder} {does} guidance scale; "
                f"set it to {instead}"
            )
        return network

    def guidance(self, sigma: Tensor) -> Tensor | None:
        """[N], the same for every row; None: the transformer does not take it."""
        given = self.embedded_guidance
        return None if given is None else torch.full_like(sigma, given)


class EmbeddedGuidance(GuidanceInput):
    """A family of pictures with some guidance-distilled transformers."""

    usual_guidance = 3.5

    def __init__(
        self,
        *,
        resolution: int = 512,
        width: int | None = None,
        max_sequence_length: int = 512,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",  # dtype of the text encoders
        images: int | None = None,
        embedded_guidance: float | None = usual_guidance,
    ) -> None:
        """`embedded_guidance`: the guidance scale that a distilled transformer takes as an input,
        not classifier-free guidance. None: for transformers without this input."""
        super().__init__(
            resolution=resolution,
            width=width,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
            images=images,
        )
        self.embedded_guidance = embedded_guidance
