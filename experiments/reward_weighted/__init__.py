"""An example loss on velocity errors: flow matching, weighted toward good images."""

from typing import Annotated

from torch import Tensor

from tandem import register_policy_loss
from tandem.contracts import positive
from tandem.dynamics.regression import energy
from tandem.types import DecoupledBatch


@register_policy_loss(on_errors=True, units={"temperature": "none", "most": "none"})
def reward_weighted(
    batch: DecoupledBatch,
    *,
    temperature: Annotated[float, positive] = 1.0,
    most: Annotated[float, positive] = 20.0,
) -> Tensor:
    """exp(A / temperature) <e^2>, the weight at most `most`. [B, T]"""
    weight = (batch.advantages / temperature).exp().clamp(max=most)
    return weight * energy(batch.error)
