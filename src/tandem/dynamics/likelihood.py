"""Log-probabilities and KLs of denoising steps: [B], nats per latent dimension.

All are means over latent dimensions, never sums: the log of a ratio is then 1/D of the whole
step's, which is why clip ranges of flows are small.

With the same std, KL(step || other) is symmetric, and the distances that papers call KL are that
one in other units: published coefficients do not carry over from one to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from tandem.contracts import register_likelihood
from tandem.dynamics.kernels import Step
from tandem.types import align_level, widen

LogProbability = Callable[[Tensor, Step], Tensor]


@register_likelihood("gaussian")
def gaussian_logp(next_x: Tensor, step: Step) -> Tensor:
    """-(x' - mean)^2 / (2 std^2) - log std - log(2 pi) / 2: a density, for every kernel with noise.

    x' is a constant. For `cps` it makes one clip range fit all kernels, which its paper's does not.
    Shape: [B] nats per latent dimension. Source: the density of a normal distribution, its mean
    over dimensions as in Flow-GRPO (arXiv:2505.05470).
    """
    error = _squared_distance(step, widen(next_x).detach())
    return -error / (2 * step.std.square()) - step.std.log() - math.log(2 * math.pi) / 2


@register_likelihood("unscaled", unscaled=True)
def unscaled_logp(next_x: Tensor, step: Step) -> Tensor:
    """-(x' - mean)^2, as the paper of `cps` has it (arXiv:2509.05952).

    Its log-ratios are 2 std^2 times those of the density. Shape: [B], in place of nats.
    """
    return -_squared_distance(step, widen(next_x).detach())


def gaussian_kl(step: Step, other_mean: Tensor) -> Tensor:
    """(mean - mean')^2 / (2 std^2): exact, of two policies that take the same step.

    Shape: [B] nats per latent dimension.
    """
    return _squared_distance(step, widen(other_mean)) / (2 * step.std.square())


def step_log_ratio(next_x: Tensor, step: Step, other: Step) -> Tensor:
    """log p / p' of the step that was taken, in nats of all its latent dimensions: [B].

    Its mean is the KL, and so is what a policy gradient makes of it as a cost; the exact KL of a
    step does not depend on where the step went, so as a cost it has no gradient at that step.
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
            f"a step with std {step.std.min():g} has no log-probability; sample the steps that are "
            "trained with dynamics=flow_sde, dance_sde or cps, and never train the last one"
        )
    return mean_square(x - step.mean, step.std)


def mean_square(x: Tensor, level: Tensor) -> Tensor:
    """The mean of x^2 over latent dimensions, [B]: a sum would grow with the size of a picture."""
    align_level(level, x)
    return widen(x).square().flatten(level.ndim).mean(-1)
