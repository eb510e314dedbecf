"""Step weights: mask [B, T] -> weight [B, T]. A loss is the weighted sum of its steps.

The mask holds all rows of one update on all ranks, so the parts of any split add up exactly.
A sample without a trained step does not count, in the denominator either.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_weights


# Every step counts the same
@register_weights(adds_to_one=True)
def token_mean(mask: Tensor) -> Tensor:
    """1 / N, N the trained steps of the update: all count equally (DAPO, arXiv:2503.14476).

    Shape: [B, T].
    """
    return mask / mask.sum().clamp(min=1)


# Every sample counts the same, however long
@register_weights(per="sample", adds_to_one=True)
def sequence_mean(mask: Tensor) -> Tensor:
    """1 / (S n_i): every sample counts the same, however long (GRPO, arXiv:2402.03300): [B, T]."""
    return mask / (_samples(mask) * mask.sum(1, keepdim=True).clamp(min=1))


# Every move of an episode counts the same, however long
@register_weights(adds_to_one=True, reads={"turn"})
def turn_mean(mask: Tensor, turn: Tensor) -> Tensor:
    """1 / (M n_m), M the moves of the update and n_m the trained steps of a move: [B, T].

    turn: [B, T] int64, the move of each step. Without an environment a sample is one move, and this
    is sequence_mean. Source: Tandem's own.
    """
    turn = torch.where(mask, turn, 0)  # 0: no move
    blank = torch.zeros(len(mask), int(turn.max()) + 1, device=mask.device)
    length = blank.scatter_add(1, turn, mask.to(blank))
    moves = (length[:, 1:] > 0).sum().clamp(min=1)
    return mask / (moves * length.gather(1, turn).clamp(min=1))


# Mean over samples of the sum over their steps
@register_weights(per="sample")
def sequence_sum(mask: Tensor) -> Tensor:
    """1 / S: the mean over samples of the sum over their steps (REINFORCE).

    Shape: [B, T]. Source: Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    return mask / _samples(mask)


@register_weights(horizon="length")
def constant_length(
    mask: Tensor,
    *,
    length: Annotated[int, positive],  # number of steps that every sample's sum is divided by
) -> Tensor:
    """1 / (S L), L constant over the run: no length bias (Dr. GRPO, arXiv:2503.20783): [B, T]."""
    return mask / (_samples(mask) * length)


def _samples(mask: Tensor) -> Tensor:
    return mask.any(1).sum().clamp(min=1)
