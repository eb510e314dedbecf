"""Orders of unmasking: which of the hidden positions a step writes, and how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import rng
from tandem.policies.language.sampling import entropy_of

# (log-probabilities [N, V], candidate tokens [N], keys [N]) -> priority [N]
Priority = Callable[[Tensor, Tensor, Tensor], Tensor]


def random(logp: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """A random number that depends only on the row and the position, [N]."""
    return rng.uniform(keys)


def confidence(logp: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """The probability of the candidate that was drawn, [N] (LLaDA, arXiv:2502.09992)."""
    return logp.gather(-1, token[:, None])[:, 0].exp()


def certainty(logp: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """Minus the entropy of the position, [N] nats (Dream's alg=entropy)."""
    return -entropy_of(logp)


def margin(logp: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """The gap between the two most likely tokens, [N]."""
    first, second = logp.topk(2).values.exp().unbind(-1)
    return first - second


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskOrder:
    """A priority, and whether it depends on the candidates: then a token is first drawn and then
    selected because of what was drawn."""

    priority: Priority
    by_candidate: bool = False


ORDERS: Mapping[str, UnmaskOrder] = {
    "random": UnmaskOrder(priority=random),
    "confidence": UnmaskOrder(priority=confidence, by_candidate=True),
    "entropy": UnmaskOrder(priority=certainty),
    "margin": UnmaskOrder(priority=margin),
}


def spread_evenly(positions: int, steps: int) -> list[int]:
    """Positions of each step, the remainder in the first ones (LLaDA)."""
    least, more = divmod(positions, steps)
    return [least + (step < more) for step in range(steps)]


def count_accepted(entropy: Sequence[float] | Tensor, bound: float) -> Tensor:
    """The number of ascending entropies [..., n] that are accepted: while their sum minus the last
    one is within the bound, and at least one. Source: DiffusionGemma's sampler."""
    entropy = torch.as_tensor(entropy)
    before = entropy.cumsum(-1) - entropy
    return (before <= bound).sum(-1).clamp(min=1)


def pick_first(priority: Tensor, hidden: Tensor, count: Tensor) -> Tensor:
    """The `count` hidden positions of the highest priority; ties go to the left.

    priority [B, L], hidden [B, L], count [B] -> [B, L] bool.
    """
    order = priority.masked_fill(~hidden, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(-1)
    return hidden & (rank < count[:, None])
