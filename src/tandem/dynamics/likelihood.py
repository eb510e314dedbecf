"""Log-probabilities and KLs of denoising steps: [B], nats per latent dimension.

All are means over latent dimensions, never sums: a log-ratio is 1/D of that of the whole step,
which is why clip ranges of flows are small.

With equal std, KL(step || other) is symmetric. The distances that papers call KL are this KL in
other units, so published coefficients do not carry over.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from tandem.contracts import register_likelihood
from tandem.dynamics.kernels import Step
from tandem.types import align_level, widen

LogProbability = Callable[[Tensor, Step], Tensor]


# The density of a step, as a mean over latent dimensions
@register_likelihood("gaussian", clip_scale=0.13)
def gaussian_logp(next_x: Tensor, step: Step) -> Tensor:
    """-(x' - mean)^2 / (2 std^2) - log std - log(2 pi) / 2: a density, for every kernel with noise.

    x' is a constant. With it one clip range fits all kernels, `cps` too, unlike its paper's form.
    Shape: [B] nats per latent dimension. Source: the density of a normal distribution, its mean
    over dimensions as in Flow-GRPO (arXiv:2505.05470).
    """
    error = _squared_distance(step, widen(next_x).detach())
    return -error / (2 * step.std.square()) - step.std.log() - math.log(2 * math.pi) / 2


# Minus the squared distance from the mean, without its variance, as in the paper of cps
@register_likelihood("unscaled", unscaled=True, clip_scale=0.013)
def unscaled_logp(next_x: Tensor, step: Step) -> Tensor:
    """-(x' - mean)^2, as in the paper of `cps` (arXiv:2509.05952).

    Its log-ratios are 2 std^2 times those of the density. Shape: [B], in place of nats.
    """
    return -_squared_distance(step, widen(next_x).detach())


def gaussian_kl(step: Step, other_mean: Tensor) -> Tensor:
    """(mean - mean')^2 / (2 std^2): the exact KL of two policies with the same std.

    Shape: [B] nats per latent dimension.
    """
    return _squared_distance(step, widen(other_mean)) / (2 * step.std.square())


def step_log_ratio(next_x: Tensor, step: Step, other: Step) -> Tensor:
    """log p / p' of the sampled step, in nats over all latent dimensions: [B].

    Its mean is the KL, and as a cost of a policy gradient it lowers the KL. The exact KL of a step
    does not depend on the sampled value, so as a cost it has no gradient at that step.
    """
    ratio = gaussian_logp(next_x, step) - gaussian_logp(next_x, other)
    return ratio * (next_x.numel() // step.std.numel())


def mean_distance(kl: Tensor, std: Tensor) -> Tensor:
    """(mean - mean')^2, from the exact KL of the step: [B, T] -> [B, T]."""
    return kl * 2 * std.square()


def velocity_distance(kl: Tensor, std: Tensor, velocity_gain: Tensor) -> Tensor:
    """(velocity - velocity')^2, from the exact KL of the step: [B, T] -> [B, T]."""
    return mean_distance(kl, std) / velocity_gain.square()


def _squared_distance(step: Step, x: Tensor) -> Tensor:
    """(x - mean)^2, the mean over latent dimensions: [B]. Raises ValueError without noise."""
    if not (step.std > 0).all():  # written so that NaN is caught as well
        raise ValueError(
            f"a step with std {step.std.min():g} has no log-probability; sample trained steps with "
            "dynamics=flow_sde, dance_sde or cps, and do not train the last step"
        )
    return mean_square(x - step.mean, step.std)


def mean_square(x: Tensor, level: Tensor) -> Tensor:
    """The mean of x^2 over latent dimensions, [B]: a sum would grow with the size of a picture."""
    align_level(level, x)
    return widen(x).square().flatten(level.ndim).mean(-1)
