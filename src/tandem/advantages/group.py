"""Advantages of samples that answer the same prompt: (Scores, Rollout, *, numbers) -> [B, T]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import at_least, register_adv_estimator
from tandem.stop import UnusableScores
from tandem.types import Rollout, Scores

Scale = Callable[[Scores, Tensor], Tensor]  # of each row's group: [B]
TIE = 1e-6  # smaller differences of scores in a group are float noise: no signal


# The score itself: 1 for demonstrations
@register_adv_estimator(of_likelihood=True)
def given(scores: Scores, rollout: Rollout) -> Tensor:
    """The score itself, which is 1 for demonstrations.

    Shape: [B, T]. Tandem's own: supervised training as a policy gradient.
    """
    return spread_over_steps(scores.total, rollout.mask)


@register_adv_estimator(compares="group")
def group_relative(
    scores: Scores,
    rollout: Rollout,
    *,
    scale: Scale | None,  # spread of a group that scores are divided by; null: no division
    eps: Annotated[float, at_least(0)] = 1e-6,  # added to the spread that scores are divided by
) -> Tensor:
    """The score relative to the group: (R - mean) / (scale + eps).

    Exactly 0 in a group whose scores tie or that has a single scored sample. Source: GRPO,
    arXiv:2402.03300; `scale=None` is Dr. GRPO, arXiv:2503.20783; `scale=batch_std` is Lite PPO,
    arXiv:2508.08221; `scale=batch_population_std` is Flow-GRPO, arXiv:2505.05470. Shape: [B, T].
    """
    centred = centre(scores, rollout.group)
    if scale is not None:
        centred = divide(centred, scale(scores, rollout.group) + eps)
    return spread_over_steps(centred, rollout.mask)


# R minus the mean of the group's other samples (RLOO)
@register_adv_estimator(compares="group")
def leave_one_out(scores: Scores, rollout: Rollout) -> Tensor:
    """R_i minus the mean score of the *other* samples of its group (RLOO, arXiv:2402.14740).

    Shape: [B, T].
    """
    count = group_sum(scores.scored, rollout.group)
    return spread_over_steps(
        centre(scores, rollout.group) * count / (count - 1).clamp(min=1), rollout.mask
    )


# R minus the group's length-weighted mean (OPO)
@register_adv_estimator(compares="group")
def opo(scores: Scores, rollout: Rollout) -> Tensor:
    """R minus the group's mean score weighted by trained steps: the optimal baseline if all steps
    contribute equally to the variance of the gradient (OPO, arXiv:2505.23585).

    Shape: [B, T].
    """
    centred = centre(scores, rollout.group)
    steps = rollout.mask.sum(1) * scores.scored.to(centred.dtype)
    shift = group_sum(steps * centred, rollout.group)
    baseline = shift / group_sum(steps, rollout.group).clamp(min=1)
    counted = scores.scored & varies(scores, rollout.group)
    return spread_over_steps(torch.where(counted, centred - baseline, 0), rollout.mask)


# (R - group mean) / group mean, for rewards of 0 and more (MaxRL)
@register_adv_estimator(compares="group", rewards=at_least(0))
def maxrl(scores: Scores, rollout: Rollout) -> Tensor:
    """(R - mean) / mean of the group, 0 where the mean is 0 (MaxRL, arXiv:2602.02710).

    Raises UnusableScores if one is negative: the mean is then no success rate. Shape: [B, T].
    """
    if (scores.total < 0).any():
        raise UnusableScores(
            f"maxrl divides by a group's mean score, but a sample scored {scores.total.min():g}; "
            "use rewards of 0 and more and no penalty, or algorithm/advantage=group_relative"
        )
    mean = group_mean(scores.total, rollout.group, scores.scored)
    relative = centre(scores, rollout.group) / torch.where(mean > 0, mean, 1)
    return spread_over_steps(relative, rollout.mask)


# R - group mean, scaled up for groups without variation (GPG)
@register_adv_estimator(compares="group")
def gpg(scores: Scores, rollout: Rollout) -> Tensor:
    """alpha (R - mean), alpha = scored samples / those in groups that vary (GPG, arXiv:2504.02546).

    alpha compensates for groups that add nothing to a mean over all samples. Shape: [B, T].
    """
    informative = varies(scores, rollout.group) & scores.scored
    alpha = scores.scored.sum() / informative.sum().clamp(min=1)
    return spread_over_steps(alpha * centre(scores, rollout.group), rollout.mask)


# R - mean of all samples (REINFORCE)
@register_adv_estimator(compares="batch")
def batch_relative(scores: Scores, rollout: Rollout) -> Tensor:
    """R minus the mean score of all samples: REINFORCE with a baseline.

    The mean is over samples; one over steps would depend on answer lengths. Source: Williams 1992,
    https://doi.org/10.1007/BF00992696. Shape: [B, T].
    """
    return spread_over_steps(centre(scores, torch.zeros_like(rollout.group)), rollout.mask)


def unbiased_std(scores: Scores, group: Tensor) -> Tensor:
    """Sample standard deviation of each group's scores: [B]."""
    return centre_and_std(scores, group)[1]


def population_std(scores: Scores, group: Tensor) -> Tensor:
    """Standard deviation of each group's scores, with n instead of n - 1: [B]."""
    count = group_sum(scores.scored, group).clamp(min=1)
    return unbiased_std(scores, group) * ((count - 1) / count).sqrt()


def batch_std(scores: Scores, group: Tensor) -> Tensor:
    """Sample standard deviation of the scores of all groups: [B], all equal."""
    return unbiased_std(scores, torch.zeros_like(group))


def batch_population_std(scores: Scores, group: Tensor) -> Tensor:
    """Standard deviation of the scores of all groups, with n instead of n - 1: [B], all equal."""
    return population_std(scores, torch.zeros_like(group))


def divide(centred: Tensor, divisor: Tensor) -> Tensor:
    """centred / divisor; 0 where the divisor is 0, as centred then is too: [B], or [B, T] each."""
    return centred / torch.where(divisor > 0, divisor, 1)


def centre(scores: Scores, group: Tensor) -> Tensor:
    """R minus the group's mean: [B]. 0 without a score, and in a group that ties."""
    centred, std = centre_and_std(scores, group)
    return torch.where(std < TIE, 0, centred)


def varies(scores: Scores, group: Tensor) -> Tensor:
    """True for every row of a group in which two scores differ: [B] bool."""
    return unbiased_std(scores, group) >= TIE


def centre_and_std(scores: Scores, group: Tensor) -> tuple[Tensor, Tensor]:
    """R minus the group's mean, 0 without a score; and the group's std. [B] each."""
    # In float64: from scores of 10 on, rounding of a float32 mean would look like a signal.
    total = scores.total.double()
    known = torch.where(scores.scored, total, 0)
    # One call for both: finding the groups costs more than adding.
    both = group_sum(torch.stack([scores.scored.to(known.dtype), known], dim=1), group)
    count, total_of_group = both.unbind(1)
    centred = torch.where(scores.scored, total - total_of_group / count.clamp(min=1), 0)
    std = (group_sum(centred.square(), group) / (count - 1).clamp(min=1)).sqrt()
    return centred.to(scores.total.dtype), std.to(scores.total.dtype)


def spread_over_steps(x: Tensor, mask: Tensor) -> Tensor:
    """One number per sample -> every trained step of it. [B], [B, T] -> [B, T]."""
    return torch.where(mask, x[:, None], 0)


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum of x over each group, for every row. [B] or [B, N] -> the same."""
    x = x.float() if x.dtype == torch.bool else x
    ids, row = number_groups(group)
    return x.new_zeros(len(ids), *x.shape[1:]).index_add_(0, row, x)[row]


def number_groups(group: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct groups, and the index of each row's group: [G] and [B] int64."""
    # Rows are mostly sorted by group already.
    in_order = bool((group[1:] >= group[:-1]).all())
    unique = torch.unique_consecutive if in_order else torch.unique
    return unique(group, return_inverse=True)


def group_mean(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of x over the rows of each row's group. x and weight: [B, T] or [B],
    group: [B].

    Weights are 0 and 1, or at most 1 with a 1 in each group.
    """
    weight = weight.to(x)
    return group_sum(x * weight, group) / group_sum(weight, group).clamp(min=1)


def exp_below_largest(logits: Tensor, group: Tensor, mask: Tensor) -> Tensor:
    """exp(logits - the largest of their group): 1 at the largest, 0 outside the mask. [B, T]"""
    logits = logits.masked_fill(~mask, -torch.inf)
    ids, row = number_groups(group)
    place = row[:, None].expand_as(logits)
    none = logits.new_full((len(ids), logits.shape[1]), -torch.inf)
    top = none.scatter_reduce(0, place, logits, "amax")[row]
    return torch.where(mask, logits - top, -torch.inf).exp()
