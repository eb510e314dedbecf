"""An example loss: the capped policy gradient of CISPO, implemented again."""

from typing import Annotated

from torch import Tensor

from tandem import register_policy_loss
from tandem.contracts import positive
from tandem.types import CoupledBatch


@register_policy_loss(reads={"old_logp"}, units={"most": "ratio"}, zero_at_zero_advantage=True)
def my_idea(batch: CoupledBatch, *, most: Annotated[float, positive] = 5.0) -> Tensor:
    """-A log p of each step, weighted by its ratio, at most `most`. [B, T]"""
    likelier = (batch.logp - batch.old_logp).exp().clamp(max=most)
    return -likelier.detach() * batch.advantages * batch.logp
