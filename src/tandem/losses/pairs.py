"""Pairs of a chosen and a rejected row in a group, and their metrics.

A row with positive advantages is chosen, one with negative advantages is rejected. The value of a
pair is on every step of both rows, so `sequence_mean` is the mean over pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from tandem.contracts import bind_declared, facts_of
from tandem.metrics import Metric, Sum
from tandem.types import CoupledBatch

Reward = Callable[..., Tensor]  # (batch, *, the numbers of the loss) -> [B, 1]


def of_pairs(x: Tensor, batch: CoupledBatch) -> tuple[Tensor, Tensor]:
    """x of the chosen and of the rejected row of each row's pair. [B, 1] -> [B, 1] each.

    A row without a pair gets its own x twice. Raises for a chosen row without a rejected one.
    """
    chosen, rejected = sides(batch)
    opposed = chosen[:, None] & rejected & (batch.group[:, None] == batch.group)
    opposed = opposed | opposed.T
    _check(batch, chosen | rejected, opposed.sum(1))
    own = torch.arange(len(opposed), device=opposed.device)
    other = torch.where(opposed.any(1), opposed.int().argmax(1), own)
    return x[torch.where(rejected, other, own)], x[torch.where(chosen, other, own)]


def on_pairs(value: Tensor, batch: CoupledBatch) -> Tensor:
    """The value of each row's pair on the trained steps of the row. [B, 1] -> [B, T]"""
    chosen, rejected = sides(batch)
    return torch.where((chosen | rejected)[:, None] & batch.mask, value, 0)


def sides(batch: CoupledBatch) -> tuple[Tensor, Tensor]:
    """Masks of the chosen and of the rejected rows. [B] bool each."""
    good, bad = batch.advantages > 0, batch.advantages < 0
    return (good & batch.mask).any(1), (bad & batch.mask).any(1)


def _check(batch: CoupledBatch, preferred: Tensor, partners: Tensor) -> None:
    odd = preferred & (partners != 1)
    if not odd.any():
        return
    row = int(odd.nonzero()[0, 0])
    raise ValueError(
        f"a preference loss compares one chosen with one rejected row, but a row of group "
        f"{int(batch.group[row])} has {int(partners[row])} partners; set "
        "algorithm/advantage=preferred, which gives +1 and -1 to one row of a group each"
    )


def of_row(x: Tensor, batch: CoupledBatch, *, length_norm: bool = False) -> Tensor:
    """The sum of x over the steps of each row, or their mean. [B, T] -> [B, 1]"""
    total = torch.where(batch.mask, x, 0).sum(1, keepdim=True)
    steps = batch.mask.sum(1, keepdim=True).clamp(min=1)
    return total / steps if length_norm else total


def log_ratio(batch: CoupledBatch, *, length_norm: bool = False) -> Tensor:
    """log p - log p_ref of each row, or its mean over steps. [B, 1] nats"""
    return of_row(batch.logp - batch.ref_logp, batch, length_norm=length_norm)


def pairs_by(reward: Reward) -> Callable[..., dict[str, Metric]]:
    """The training metrics of a loss with the row reward `reward(batch, *, its numbers)`."""

    @functools.wraps(reward)
    def metrics(batch: CoupledBatch, **numbers: float) -> dict[str, Metric]:
        return pair_metrics(batch, reward(batch, **numbers))

    return metrics


def reward_of(loss: Callable) -> Callable[[CoupledBatch], Tensor] | None:
    """The row reward of a loss, bound to its numbers; None if the loss has none.

    Training logs it for pairs, and evaluation how often it is higher for the chosen row. The
    function gives [B, 1].
    """
    return bind_declared(loss, facts_of(loss).reward)


def pair_metrics(batch: CoupledBatch, reward: Tensor) -> dict[str, Metric]:
    """Accuracy and margin of the chosen row, means over pairs. reward: [B, 1]"""
    pairs = sides(batch)[0]
    chosen, rejected = of_pairs(reward, batch)
    of_chosen, of_rejected = of_pairs(of_row(batch.logp, batch), batch)
    values = {
        "accuracy": chosen > rejected,
        "margin": chosen - rejected,
        "chosen_reward": chosen,
        "rejected_reward": rejected,
        "chosen_logp": of_chosen,
        "rejected_logp": of_rejected,
    }
    return {
        f"preference/{name}": Sum(torch.where(pairs, x[:, 0], 0).sum(), pairs.sum())
        for name, x in values.items()
    }
