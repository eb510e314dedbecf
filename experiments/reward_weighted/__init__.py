"""A loss on velocity errors of one's own: flow matching, good pictures counting more."""

from torch import Tensor

from tandem import register_policy_loss
from tandem.declarations import on_errors
from tandem.dynamics.regression import energy
from tandem.types import DecoupledBatch


@register_policy_loss
@on_errors
def reward_weighted(
    batch: DecoupledBatch, *, temperature: float = 1.0, most: float = 20.0
) -> Tensor:
    """exp(A / temperature) <e^2>, the weight at most `most`. [B, T]"""
    weight = (batch.advantages / temperature).exp().clamp(max=most)
    return weight * energy(batch.error)
