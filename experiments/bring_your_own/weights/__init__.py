"""Weights of steps: `algorithm/weights=root_length`."""

from torch import Tensor

from tandem import register_weights


@register_weights
def root_length(mask: Tensor) -> Tensor:
    """1 / (S sqrt(n_i)), [B, T]: between a mean over samples and a sum over their steps."""
    samples = mask.any(1).sum().clamp(min=1)
    return mask / (samples * mask.sum(1, keepdim=True).clamp(min=1).sqrt())
