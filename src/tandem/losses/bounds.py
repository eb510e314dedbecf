"""Losses of bounds on log p of answers: one from below, one from above."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import fraction, register_policy_loss
from tandem.losses.sequence import sample_mean
from tandem.types import CoupledBatch

ONE_BOUND = (
    "it also reads an upper bound on log p, which only masked texts have; set "
    "algorithm/loss=reinforce"
)


# -A times a bound from below of good answers, and from above of bad ones (SPG)
@register_policy_loss(
    reads={"upper_logp"},
    of_bounds=True,
    units={"omega": "none"},
    zero_at_zero_advantage=True,
    refused={"tokens": ONE_BOUND, "steps": ONE_BOUND, "pictures": ONE_BOUND},
)
def spg(
    batch: CoupledBatch,
    *,
    # Share of the upper bound for bad answers; 0: the lower bound alone.
    omega: Annotated[float, fraction] = 0.5,
) -> Tensor:
    """-A lower where A > 0, else -A (omega upper + (1 - omega) lower), both means over positions.

    A lower bound raises the likelihood of good answers; an upper bound, in part, lowers that of bad
    ones. Source: SPG, arXiv:2510.09541. Shape: [B, T].
    """
    lower, upper = sample_mean(batch.logp, batch), sample_mean(batch.upper_logp, batch)
    mixed = omega * upper + (1 - omega) * lower
    return -batch.advantages * torch.where(batch.advantages > 0, lower, mixed)
