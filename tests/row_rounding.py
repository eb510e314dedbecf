"""Matrix products whose last bits depend on the number of rows, as in BLAS on some CPUs.

A plugin: `make rounding` runs tests with it that compare forward passes of different numbers of
rows. A test that fails under it demands equal bits where the code promises 1e-6 nats.
"""

import torch
from torch import Tensor
from torch.nn import functional

linear = functional.linear


def round_by_rows(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A sum of two products, split at a point that depends on the number of rows."""
    width = weight.shape[1]
    plain = type(states) is Tensor and states.dtype == weight.dtype != torch.float64
    if not plain or torch.is_autocast_enabled("cpu") or width < 4:
        return linear(states, weight, bias)
    cut = 1 + states.numel() // width % (width - 2)
    first = linear(states[..., :cut], weight[:, :cut], bias)
    return first + linear(states[..., cut:], weight[:, cut:])


functional.linear = round_by_rows
