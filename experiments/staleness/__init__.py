"""A correction that corrects nothing, to measure the cost of older samples."""

from torch import Tensor

from tandem import register_correction
from tandem.types import CoupledBatch


@register_correction(reads={"behaviour_logp"})
def uncorrected(batch: CoupledBatch) -> Tensor:
    """Weight 1 for every step, whatever weights sampled it: [B, T], 0 outside the mask.

    `algorithm/importance_sampling=none` is refused for samples of older weights. This is not,
    because it declares that it reads the sampler's log-probabilities.
    """
    return batch.mask.to(batch.behaviour_logp.dtype)
