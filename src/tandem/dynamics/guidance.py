"""Classifier-free guidance: one velocity from those with and without the prompt."""

from __future__ import annotations

from torch import Tensor

from tandem.types import widen


def needs_unprompted(scale: float) -> bool:
    """Whether a scale needs the velocity without the prompt; 1 is no guidance.

    Raises ValueError for a scale below 1.
    """
    if scale < 1:
        raise ValueError(f"guidance_scale={scale:g} must be at least 1 (no guidance)")
    return scale > 1


def guide(prompted: Tensor, unprompted: Tensor | None, *, scale: float) -> Tensor:
    """unprompted + scale (prompted - unprompted), in float32; the gradient goes into both.

    Raises if the scale needs an unprompted velocity and there is none: without it, another policy
    would be sampled and trained. All are [B, ...].
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

    As in Qwen-Image, per patch: guidance changes the direction of a velocity, not its norm. All are
    [..., D].
    """
    norms = [x.norm(dim=-1, keepdim=True) for x in (widen(prompted), widen(guided))]
    return widen(guided) * (norms[0] / norms[1])
