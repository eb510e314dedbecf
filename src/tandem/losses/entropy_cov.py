"""Policy losses that treat some steps of an update differently, [B, T].

The steps are chosen among all rows of the update, by statistics computed before any split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import Facts, at_least, fraction, register_policy_loss, rising
from tandem.contracts import between as within
from tandem.losses.policy import clip_metrics, ppo, ratio_of
from tandem.losses.wrappers import LossWrapper
from tandem.metrics import Metric, masked_mean, own_metrics
from tandem.types import CoupledBatch

SPARES_ENTROPY = {
    "steps": "it preserves the policy's entropy, but that of a Gaussian step depends only on its "
    "noise level; set algorithm/loss=ppo",
    "pictures": "it preserves the policy's entropy, but a regression error has none; set "
    "algorithm/loss=ppo",
}


def covariance(batch: CoupledBatch) -> Tensor:
    """c = (A - mean A) (log p - mean log p) over the steps of an update, detached; 0 outside.

    A policy gradient lowers the entropy fastest where it is large (arXiv:2505.22617).
    Shape: [B, T], nats times the unit of the advantage.
    """
    mask = batch.trained
    return _centre(batch.advantages, mask) * _centre(batch.logp.detach(), mask)


def _centre(x: Tensor, mask: Tensor) -> Tensor:
    mean = torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)
    return torch.where(mask, x - mean, 0)


def step_draws(batch: CoupledBatch, purpose: str) -> Tensor:
    """A random number in (0, 1) for each step, [B, T], float64.

    A function of the row's key and the index of the trained step: independent of ranks, splits,
    padding, row order and rounding; other iterations and seeds give other numbers.
    """
    keys = rng.key(batch.key, purpose)
    return rng.unit(rng.at(keys[:, None], batch.mask.cumsum(1)))


def highest(x: Tensor, among: Tensor, count: int) -> Tensor:
    """The `count` steps with the highest x `among` some, or all if they are fewer.

    [B, T] -> [B, T] bool
    """
    count = min(count, int(among.sum()))
    places = torch.where(among, x, -torch.inf).flatten().topk(count).indices
    return torch.zeros_like(among).flatten().index_fill_(0, places, True).view_as(among)


def share(part: float, batch: CoupledBatch) -> int:
    """The number of steps in a part of the update, at least one of a part above 0."""
    return max(1, int(part * int(batch.trained.sum()))) if part else 0


def find_clipped(
    batch: CoupledBatch,
    *,
    clip_low: float,
    clip_high: float,
    part: float,
    between: tuple[float, float],
) -> Tensor:
    """[B, T] bool, True where a step was drawn at random to lose its gradient."""
    ratio, c = ratio_of(batch.logp, batch.old_logp), covariance(batch)
    low = (ratio < 1 - clip_low) & (batch.advantages < 0)
    high = (ratio > 1 + clip_high) & (batch.advantages > 0)
    candidates = batch.trained & ~low & ~high & (c > between[0]) & (c < between[1])
    return highest(step_draws(batch, "clip_cov"), candidates, share(part, batch))


def clip_cov_metrics(
    batch: CoupledBatch, statistics: Tensor, *, clip_low: float, clip_high: float
) -> dict[str, Metric]:
    """The metrics of PPO, and the fraction of drawn steps.

    `statistics`: [B, T] bool, the steps that were drawn.
    """
    clipped = clip_metrics(batch, clip_low=clip_low, clip_high=clip_high, ratio_max=None)
    return clipped | {"actor/clip_cov_selected": masked_mean(statistics, batch.mask)}


# Clipped surrogate; a few random steps of high covariance lose their gradient (Clip-Cov)
@register_policy_loss(
    reads={"old_logp", "key"},
    clips=1.0,
    units={"clip_low": "clip", "clip_high": "clip", "part": "none", "between": "none"},
    zero_at_zero_advantage=True,
    refused=SPARES_ENTROPY,
    batch_statistics=find_clipped,
    metrics=clip_cov_metrics,
)
def clip_cov(
    batch: CoupledBatch,
    statistics: Tensor,
    *,
    # A bad step whose ratio is below 1 - clip_low has no gradient.
    clip_low: Annotated[float, within(0, 1)] = 0.2,
    # A good step whose ratio is above 1 + clip_high has no gradient.
    clip_high: Annotated[float, at_least(0)] = 0.2,
    # Share of the steps of an update that lose their gradient.
    part: Annotated[float, fraction] = 2e-4,
    # Lowest and highest covariance of advantage and log p of a step that may be drawn.
    between: Annotated[tuple[float, float], rising] = (1.0, 5.0),
) -> Tensor:
    """PPO's loss, but 0 for a random `part` of all steps with a covariance within `between`.

    A drawn step still counts in the mean. Source: Clip-Cov, arXiv:2505.22617. Shape: [B, T].
    """
    plain = ppo(batch, clip_low=clip_low, clip_high=clip_high)
    return torch.where(statistics.bool(), 0, plain)


def find_penalised(batch: CoupledBatch, *, part: float) -> Tensor:
    """[B, T] bool, True for the `part` of all steps with the highest covariance above 0."""
    c = covariance(batch)
    return highest(c, batch.trained & (c > 0), share(part, batch))


def kl_cov_metrics(batch: CoupledBatch, statistics: Tensor, *, coef: float) -> dict[str, Metric]:
    """The fraction of penalised steps, and the mean penalty per step.

    `statistics`: [B, T] bool, the penalised steps.
    """
    moved = torch.where(statistics.bool(), (batch.logp - batch.old_logp).abs(), 0)
    return {
        "actor/kl_cov_selected": masked_mean(statistics, batch.mask),
        "actor/kl_cov_penalty": masked_mean(coef * moved, batch.mask),
    }


# A row without advantage may also be penalised.
# Ratio without a clip; the steps of highest covariance get a KL penalty instead (KL-Cov)
@register_policy_loss(
    reads={"old_logp"},
    units={"part": "none", "coef": "none"},
    refused=SPARES_ENTROPY,
    batch_statistics=find_penalised,
    metrics=kl_cov_metrics,
)
def kl_cov(
    batch: CoupledBatch,
    statistics: Tensor,
    *,
    # Share of the steps of an update that are penalised; published: 2e-4 to 2e-3.
    part: Annotated[float, fraction] = 2e-4,
    coef: Annotated[float, at_least(0)] = 1.0,  # coefficient of the penalty |log p - log p_old|
) -> Tensor:
    """-r A without a clip, plus coef |log p - log p_old| on the steps of the highest covariance.

    Source: KL-Cov, arXiv:2505.22617. Shape: [B, T].
    """
    held_back = coef * (batch.logp - batch.old_logp).abs()
    gain = ratio_of(batch.logp, batch.old_logp) * batch.advantages
    return torch.where(statistics.bool(), held_back, 0) - gain


@register_policy_loss(
    "top_entropy",
    reads={"entropy"},
    units={"part": "none"},
    refused={
        "steps": "the entropy of a Gaussian step is a constant of its noise level, so it would "
        "pick noise levels; set algorithm/loss=ppo",
        "pictures": "a regression error has no entropy to pick steps by; set algorithm/loss=ppo",
    },
)
@dataclass(frozen=True, kw_only=True)
class TopEntropy(LossWrapper):
    """A loss, but 0 on all steps except the `part` with the highest entropy (arXiv:2506.01939).

    Kept: H is at least the (1 - part) quantile of the update. The others still count in the mean.
    """

    says: ClassVar[str] = "top entropy"

    part: float = 0.2  # share of the steps of an update that keep their loss

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ValueError(f"{self.says} needs 0 < part <= 1, but part={self.part}")
        super().__post_init__()

    def own_facts(self, declared: Facts) -> Facts:
        return replace(super().own_facts(declared), batch_statistics=self.find_steps)

    def find_steps(self, batch: CoupledBatch) -> Tensor:
        """[B, T] bool, True where a step is kept."""
        mask = batch.trained
        entropy = batch.entropy[mask]
        if not len(entropy):
            return mask
        # Being at or above the interpolated quantile is being at or above the next order statistic.
        below = math.ceil((1 - self.part) * (len(entropy) - 1) - 1e-9)
        return mask & (batch.entropy >= entropy.kthvalue(below + 1).values)

    def __call__(self, batch: CoupledBatch, statistics: Tensor) -> Tensor:
        return torch.where(statistics.bool(), self.loss(batch), 0)

    def metrics(self, batch: CoupledBatch, statistics: Tensor) -> dict[str, Metric]:
        """The metrics of the loss, and the fraction of kept steps. `statistics`: [B, T] bool."""
        kept = masked_mean(statistics, batch.mask)
        return own_metrics(self.loss, batch) | {"actor/top_entropy_kept": kept}
