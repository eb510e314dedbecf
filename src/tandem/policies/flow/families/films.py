"""The base class of video families: latents have a frame axis, which the VAE compresses."""

from __future__ import annotations

from typing import Literal

from tandem.contracts import declare
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.pipelines import Pipeline


@declare(makes_films=True)
class Films(Pipeline):
    """Films of `frames` frames. The first latent frame is one frame, each other one `stride`."""

    def __init__(
        self,
        *,
        resolution: int = 480,
        width: int | None = None,
        frames: int = 81,
        max_sequence_length: int = 512,
        encoder_dtype: Literal["float32", "bfloat16"] = "float32",  # dtype of the text encoders
    ) -> None:
        super().__init__(
            resolution=resolution,
            width=width,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
        )
        self.frames = frames
        self.image_shape = (frames, *self.image_shape)

    @property
    def stride(self) -> int:
        """Frames of a film per latent frame."""
        return self.vae.temporal_compression_ratio

    @property
    def scale(self) -> int:
        return self.vae.spatial_compression_ratio

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        flag, count = ("model.adapter", self.frames) if frames is None else ("evaluation", frames)
        if count < 1 or (count - 1) % self.stride:
            raise ValueError(
                f"{flag}.frames={count} does not fit model.path={self.folder}: "
                f"it must be a multiple of {self.stride} plus 1"
            )
        still = super().canvas(resolution)
        (channels, *sides), depth = still.latent_shape, (count - 1) // self.stride + 1
        return Canvas(latent_shape=(channels, depth, *sides), tokens=depth * still.tokens)
