"""KL(policy || reference) as a loss, [B, T]: estimated from tokens, exact of Gaussian steps.

For tokens in nats (Schulman 2020), with x = logp - ref_logp. On fresh samples k2, `k3_unbiased` and
`k3_plus` have the gradient of the reverse KL; plain k3 has that of the forward KL, as published for
GRPO; k1 has zero expected gradient and is therefore not offered.

For Gaussian steps it is (mean - mean_ref)^2 / (2 std^2) per latent dimension; other distances that
papers call KL are multiples of it, so a coefficient published for one does not fit another.

At fresh noise it is a distance to the velocities of the reference, per latent dimension.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import declare, fraction, positive, register_kl
from tandem.dynamics import likelihood
from tandem.dynamics.regression import energy
from tandem.losses.policy import MAX_LOG_RATIO, k3_of, ratio_of
from tandem.types import CoupledBatch, DecoupledBatch, widen

OF_TOKENS = {
    "steps": "it is quadratic in a log ratio, which here is a mean over D latent dimensions, so it "
    "would be D times too small; set algorithm/kl=auto, which is exact",
    "pictures": "a regression error is not a log-probability, so no KL can be estimated from it; "
    "set algorithm.kl.coef=0",
}
OF_GAUSSIAN_STEPS = {
    "tokens": "tokens are not Gaussian steps; set algorithm/kl=auto",
    "pictures": "a finished picture is not a Gaussian step; set algorithm.kl.coef=0",
}

OF_VELOCITIES = {
    "tokens": "it compares velocities, but tokens have none; set algorithm/kl=auto",
    "steps": "it compares velocities at fresh noise, not on the steps that were sampled; set "
    "algorithm/kl=velocity_distance",
}


# Half the squared log ratio in the loss: the right gradient, a biased value
@register_kl(reads={"ref_logp"}, refused=OF_TOKENS)
def k2(batch: CoupledBatch) -> Tensor:
    """x^2 / 2: the right gradient on fresh samples, a biased value.

    Shape: [B, T] nats. Source: http://joschu.net/blog/kl-approx.html.
    """
    return (batch.logp - batch.ref_logp).square() / 2


# Half the squared log ratio of a whole answer, by its length (ESPO)
@register_kl(
    reads={"ref_logp"},
    of_bounds=True,
    refused={
        **OF_TOKENS,
        "tokens": "it is for bounds on log p, but tokens sampled one by one have a KL each; set "
        "algorithm/kl=auto",
    },
)
def k2_sequence(batch: CoupledBatch) -> Tensor:
    """(sum of x)^2 / 2L of an answer of L positions, constant along them: of bounds on log p.

    Shape: [B, T] nats. Source: ESPO, arXiv:2512.03759.
    """
    apart = torch.where(batch.mask, batch.logp - batch.ref_logp, 0).sum(1, keepdim=True)
    length = batch.mask.sum(1, keepdim=True).clamp(min=1)
    return (apart.square() / (2 * length)).expand_as(batch.logp)


# k3 in the loss, as GRPO published it: the gradient of the forward KL
@register_kl(reads={"ref_logp"}, refused=OF_TOKENS)
def k3(batch: CoupledBatch) -> Tensor:
    """The estimator of GRPO (arXiv:2402.03300): the right value, the gradient of the forward KL.

    Shape: [B, T] nats.
    """
    return k3_of(batch.logp, batch.ref_logp)


# k3 times the ratio of each step, in the loss: right in value and gradient
@register_kl(reads={"ref_logp", "old_logp"}, refused=OF_TOKENS)
def k3_unbiased(batch: CoupledBatch) -> Tensor:
    """r k3, r the differentiable ratio of each step: right in value and gradient, also
    off-policy if the ratio is to the policy that sampled.

    Its gradient is r x: r k3 from the ratio and r (1 - exp(-x)) from k3, whose exp(-x) cancel. It
    is written in this form, because in float32 the difference loses all digits for tokens that are
    far likelier under the reference. Source: DeepSeek-V3.2. Shape: [B, T] nats.
    """
    ratio = ratio_of(batch.logp, batch.old_logp).detach()
    value = ratio * k3_of(batch.logp, batch.ref_logp)
    log_ratio = (batch.logp - batch.ref_logp).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return value.detach() + ratio * log_ratio * (batch.logp - batch.logp.detach())


# The value of k3 with the gradient of k2, in the loss
@register_kl(reads={"ref_logp"}, refused=OF_TOKENS)
def k3_plus(batch: CoupledBatch) -> Tensor:
    """The value of k3 with the gradient of k2 (straight-through).

    Shape: [B, T] nats. Source: verl's k3+.
    """
    slope = k2(batch)
    return slope - slope.detach() + k3(batch).detach()


# The KL of Gaussian steps in the loss, exact: (mean - mean_ref)^2 / (2 std^2)
@register_kl(reads={"kl_to_ref"}, refused=OF_GAUSSIAN_STEPS)
def gaussian(batch: CoupledBatch) -> Tensor:
    """(mean - mean_ref)^2 / (2 std^2): exact, nats per latent dimension.

    Shape: [B, T]. Source: Flow-GRPO, arXiv:2505.05470.
    """
    return batch.transition.kl_to_ref


# (mean - mean_ref)^2 of Gaussian steps in the loss: Flow-Factory's x-based KL
@register_kl(reads={"kl_to_ref"}, refused=OF_GAUSSIAN_STEPS)
def mean_distance(batch: CoupledBatch) -> Tensor:
    """(mean - mean_ref)^2, the x-based KL of Flow-Factory: [B, T]. Source: Flow-Factory."""
    steps = batch.transition
    return likelihood.mean_distance(steps.kl_to_ref, steps.std)


# (velocity - velocity_ref)^2 of Gaussian steps in the loss: noise levels count equally
@register_kl(reads={"kl_to_ref"}, refused=OF_GAUSSIAN_STEPS)
def velocity_distance(batch: CoupledBatch) -> Tensor:
    """(velocity - velocity_ref)^2: every noise level counts equally.

    Shape: [B, T]. Source: Flow-Factory's v-based KL.
    """
    steps = batch.transition
    gain = torch.where(batch.mask, steps.velocity_gain, 1)  # a division by 0 would leave NaN
    return likelihood.velocity_distance(steps.kl_to_ref, steps.std, gain)


# The KL of Gaussian steps without their duration, in the loss: Flow-GRPO's code; SDEs only
@register_kl(reads={"kl_to_ref"}, of_sde=True, refused=OF_GAUSSIAN_STEPS)
def timeless(batch: CoupledBatch) -> Tensor:
    """(mean - mean_ref)^2 / (2 s^2), std = s sqrt(-dt): Flow-GRPO's code, for SDEs alone.

    Shape: [B, T], nats per latent dimension and unit of time. Source: Flow-GRPO's code
    (arXiv:2505.05470).
    """
    steps = batch.transition
    return steps.kl_to_ref * (widen(steps.sigma) - widen(steps.next_sigma))


# (velocity - velocity_ref)^2 at fresh noise: noise levels count equally
@register_kl(reads={"ref_error"}, on_errors=True, refused=OF_VELOCITIES)
def regressed(batch: DecoupledBatch) -> Tensor:
    """(velocity - velocity_ref)^2 at fresh noise, the mean over latent dimensions.

    Shape: [B, T]. Source: DiffusionNFT, arXiv:2509.16117.
    """
    return energy(batch.error - batch.ref_error)


# (velocity - velocity_ref)^2 at fresh noise, with more weight close to the data
@register_kl(reads={"ref_error"}, on_errors=True, refused=OF_VELOCITIES)
def regressed_elbo(batch: DecoupledBatch) -> Tensor:
    """(velocity - velocity_ref)^2 / (2 s^2), s = 0.7 sqrt(sigma / (1 - min(sigma, 0.99))): the
    weight grows without bound towards the data (AWM, arXiv:2509.25050).

    Shape: [B, T].
    """
    sigma = torch.where(batch.mask, batch.sigma, 1)  # a division by 0 would leave NaN
    variance = 0.49 * sigma / (1 - sigma.clamp(max=0.99))
    return regressed(batch) / (2 * variance)


# (velocity - velocity_ref)^2 at fresh noise, least for bad pictures (CRD)
@register_kl(reads={"ref_error"}, on_errors=True, refused=OF_VELOCITIES)
def reward_adaptive(
    batch: DecoupledBatch,
    *,
    # Share of the coefficient for the worst images; published: 1e-4 / coef.
    least: Annotated[float, fraction] = 1e-3,
    # Advantage at which an image counts as perfect, or as worthless.
    advantage_clip: Annotated[float, positive] = 5.0,
) -> Tensor:
    """[least + (1 - least) R] (velocity - velocity_ref)^2, R in [0, 1] how good the picture is.

    Only good pictures keep the policy near the reference. Published as a minimal coefficient of
    1e-4, which is `least` times the coefficient (CRD). Source: Centred Reward Distillation.
    """
    wanted = optimality(batch.advantages, advantage_clip=advantage_clip)
    return (least + (1 - least) * wanted) * regressed(batch)


@declare(reads={"fast_error"}, on_errors=True)
def to_ema(batch: DecoupledBatch) -> Tensor:
    """(velocity - velocity_fast)^2: the distance to a fast moving average of the policy.

    Shape: [B, T].
    """
    return energy(batch.error - batch.fast_error)


def optimality(advantages: Tensor, *, advantage_clip: float) -> Tensor:
    """A / (2c) + 1/2, A clipped to [-c, c]: how good a sample is, in [0, 1]; 1/2 is the average."""
    return advantages.clamp(-advantage_clip, advantage_clip) / (2 * advantage_clip) + 0.5
