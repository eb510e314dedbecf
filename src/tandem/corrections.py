"""What a step is worth when another policy sampled it: (old, behaviour, mask) -> weight [B, T].

`old_logp` are the weights at the start of the update in the trainer's own arithmetic, and
`behaviour_logp` is what the sampler said. Their ratio is constant over the update, so a weight
multiplies the loss of a step beside any ratio of that loss. It is 0 outside the mask and has no
gradient; a rejected step keeps its place in the mean, so rejecting shortens the update.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.types import needs

MAX_LOG_RATIO = 20.0  # e^20 keeps a ratio finite in float32

corrects = needs("old_logp", "behaviour_logp")


def step_log_ratio(old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, T] nats, 0 outside the mask."""
    return torch.where(mask, old_logp - behaviour_logp, 0).detach()


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def step_ratio(old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, T], of each step."""
    return _exp(step_log_ratio(old_logp, behaviour_logp, mask))


def product_ratio(old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, 1], of a whole sample: its variance grows with the length without bound."""
    return _exp(step_log_ratio(old_logp, behaviour_logp, mask).sum(1, keepdim=True))


def geometric_ratio(old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, 1], the geometric mean over the steps of a sample."""
    total = step_log_ratio(old_logp, behaviour_logp, mask).sum(1, keepdim=True)
    return _exp(total / mask.sum(1, keepdim=True).clamp(min=1))


def _within(ratio: Tensor, low: float, high: float) -> Tensor:
    return (ratio >= low) & (ratio <= high)


@corrects
def token_tis(
    old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, ratio_max: float = 2.0
) -> Tensor:
    """min(r, ratio_max) of each step: truncated importance sampling."""
    return step_ratio(old_logp, behaviour_logp, mask).clamp(max=ratio_max) * mask


@corrects
def sequence_tis(
    old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, ratio_max: float = 2.0
) -> Tensor:
    """min(R, ratio_max), R the product over the sample's steps."""
    return product_ratio(old_logp, behaviour_logp, mask).clamp(max=ratio_max) * mask


@corrects
def icepop(
    old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 5.0
) -> Tensor:
    """r of each step, 0 where it is outside [low, high]."""
    ratio = step_ratio(old_logp, behaviour_logp, mask)
    return ratio * _within(ratio, low, high) * mask


@corrects
def sequence_mask(
    old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 3.0
) -> Tensor:
    """R of the sample, 0 where it is outside [low, high]."""
    ratio = product_ratio(old_logp, behaviour_logp, mask)
    return ratio * _within(ratio, low, high) * mask


@corrects
def sequence_rejection(
    old_logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 2.0
) -> Tensor:
    """1, but 0 for samples whose R is outside [low, high]."""
    return _within(product_ratio(old_logp, behaviour_logp, mask), low, high) * mask.to(old_logp)


@corrects
def geometric_rejection(
    old_logp: Tensor,
    behaviour_logp: Tensor,
    mask: Tensor,
    *,
    low: float = 0.999,
    high: float = 1.001,
) -> Tensor:
    """1, but 0 for samples whose geometric mean ratio is outside [low, high]."""
    return _within(geometric_ratio(old_logp, behaviour_logp, mask), low, high) * mask.to(old_logp)


@needs("old_logp", "behaviour_logp", "version_gap")
def staleness_decay(
    old_logp: Tensor,
    behaviour_logp: Tensor,
    mask: Tensor,
    version_gap: Tensor,
    *,
    low: float = 0.5,
    high: float = 2.0,
    decay: float = 1.0,
) -> Tensor:
    """clip(r, low, high) decay^gap, the gap [B] in versions of the weights since it was sampled.

    Not divided by its mean: that would undo the decay and depend on the cut. Only where the loss
    has no ratio of its own to the sampler may current log-probabilities stand for `old_logp`.
    """
    shrink = torch.as_tensor(decay).to(old_logp) ** version_gap
    ratio = step_ratio(old_logp, behaviour_logp, mask).clamp(low, high)
    return ratio * shrink[:, None] * mask


def log_linear_proximal(logp: Tensor, behaviour_logp: Tensor, version_gap: Tensor) -> Tensor:
    """`old_logp` without a forward pass: between sampler and policy, by versions (AReaL). [B, T]

    The weights of one version ago are (gap - 1) / gap of the way from the sampler to now.
    """
    share = ((version_gap - 1) / version_gap.clamp(min=1)).clamp(min=0)
    return behaviour_logp + share[:, None].to(logp) * (logp.detach() - behaviour_logp)
