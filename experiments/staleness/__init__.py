"""A correction that corrects nothing: what older samples cost where nobody looks."""

from torch import Tensor

from tandem import register_correction
from tandem.types import CoupledBatch


@register_correction(reads={"behaviour_logp"})
def uncorrected(batch: CoupledBatch) -> Tensor:
    """Every step counts fully, whichever weights sampled it: [B, T], 0 outside the mask.

    `algorithm/importance_sampling=none` is refused beside samples of older weights; this is not, as
    it says that it reads what the sampler said.
    """
    return batch.mask.to(batch.behaviour_logp.dtype)
