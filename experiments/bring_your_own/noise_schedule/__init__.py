"""A noise schedule of flows: `dynamics/schedule=cosine`."""

import math

import torch
from torch import Tensor

from tandem import register_noise_schedule


@register_noise_schedule
def cosine(steps: int, tokens: int, *, power: float = 1.0) -> Tensor:
    """cos(pi/2 step/steps)^power, [steps + 1] from 1 to 0: most steps are at high noise."""
    angle = torch.linspace(0, math.pi / 2, steps + 1, dtype=torch.float64)
    levels = angle.cos().clamp(min=0) ** power
    levels[-1] = 0.0
    return levels
