"""Classifier-free guidance: one velocity out of two, those with and without the prompt."""

from __future__ import annotations

from torch import Tensor

from tandem.types import widen


def needs_unprompted(scale: float) -> bool:
    """Whether a scale asks for the velocity without the prompt; 1 is no guidance.

    Raises ValueError for a scale below 1.
    """
    if scale < 1:
        raise ValueError(f"a guidance scale is at least 1 (no guidance), got {scale:g}")
    return scale > 1


def guide(prompted: Tensor, unprompted: Tensor | None, *, scale: float) -> Tensor:
    """unprompted + scale (prompted - unprompted), in float32; the gradient goes into both.

    Raises if the scale asks for an unprompted velocity and there is none: to go on without it would
    sample, and train, another policy than the one that was named. All are [B, ...].
    """
    if not needs_unprompted(scale):
        return widen(prompted)
    if unprompted is None:
        raise ValueError(
            f"guidance_scale={scale:g} needs the velocity without the prompt; "
            "encode a negative prompt, or set guidance_scale=1"
        )
    return widen(unprompted) + scale * (widen(prompted) - widen(unprompted))


def rescale(prompted: Tensor, guided: Tensor) -> Tensor:
    """guided |prompted| / |guided|, norms over the last dimension, in float32.

    What Qwen-Image does to every patch: guidance turns a velocity, and does not lengthen it. All
    are [..., D].
    """
    norms = [x.norm(dim=-1, keepdim=True) for x in (widen(prompted), widen(guided))]
    return widen(guided) * (norms[0] / norms[1])
