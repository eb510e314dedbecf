"""A correction of rows that other weights sampled: `algorithm/importance_sampling=root`."""

from typing import Annotated

from torch import Tensor

from tandem import register_correction
from tandem.contracts import positive
from tandem.losses.importance import step_ratio
from tandem.types import CoupledBatch


@register_correction(reads={"old_logp", "behaviour_logp"})
def root(batch: CoupledBatch, *, most: Annotated[float, positive] = 2.0) -> Tensor:
    """The square root of each step's ratio, at most `most`: [B, T], 0 outside the mask."""
    return step_ratio(batch).sqrt().clamp(max=most) * batch.mask
