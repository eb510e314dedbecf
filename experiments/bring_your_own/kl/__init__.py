"""A distance to the reference, as a term of the loss: `algorithm/kl=absolute`."""

from torch import Tensor

from tandem import register_kl
from tandem.types import CoupledBatch


@register_kl(reads={"ref_logp"}, refused={"pictures": "it has no log-probability of a step"})
def absolute(batch: CoupledBatch) -> Tensor:
    """|log p - log p_ref| of each step, [B, T] nats."""
    return (batch.logp - batch.ref_logp).abs()
