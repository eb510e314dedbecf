"""A loss: `algorithm/loss=tempered`."""

from typing import Annotated

from torch import Tensor

from tandem import register_policy_loss
from tandem.contracts import fraction
from tandem.types import CoupledBatch


@register_policy_loss(reads={"old_logp"}, zero_at_zero_advantage=True)
def tempered(batch: CoupledBatch, *, power: Annotated[float, fraction] = 0.5) -> Tensor:
    """-A ratio^power of each step, [B, T]: power 1 is importance sampling, 0 trains nothing."""
    return -batch.advantages * (power * (batch.logp - batch.old_logp)).exp()
