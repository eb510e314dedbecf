"""Advantages for the best of k samples: (Scores, Rollout, *, numbers) -> [B, T].

Subset counts are binomials of the scored samples, computed in float64: beyond groups of 30 they
exceed float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import Scale, centre, divide, group_sum, spread_over_steps, varies
from tandem.contracts import at_least, register_adv_estimator
from tandem.stop import UnusableScores
from tandem.types import Rollout, Scores


@register_adv_estimator(compares="group")
def best_gap(
    scores: Scores,
    rollout: Rollout,
    *,
    scale: Scale | None,  # spread of a group that the lead is divided by; null: no division
    eps: Annotated[float, at_least(0)] = 1e-6,  # added to the spread
) -> Tensor:
    """The best sample of a group gets its lead over the second, / (scale + eps); the others 0.

    0 if two samples are best, or if only one was scored. Source: `grpo_passk` of verl.
    Shape: [B, T].
    """
    order = ascending(scores.total, scores, rollout.group)
    last = (order.place == order.count - 1) & (order.count > 1)
    lead = torch.where(last, order.value - order.value.roll(1), 0)
    lead = torch.where(varies(scores, rollout.group), order.back(lead), 0)
    if scale is not None:
        lead = divide(lead, scale(scores, rollout.group) + eps)
    return spread_over_steps(lead, rollout.mask)


@register_adv_estimator(
    compares="group", rewards=at_least(0), set_size="k", whole_group_is_no_set=True
)
def pass_at_k(
    scores: Scores,
    rollout: Rollout,
    *,
    k: int,  # samples of a set: the gain is that of pass@k; at most group_size - 1
) -> Tensor:
    """Gain of a sample for passing within k samples, over all sets of k of its group at once.

    With mu = pass@k of the group and sd = sqrt(mu (1 - mu)): a correct sample gets (1 - mu) / sd, a
    wrong one (1 - mu - P(k - 1 others all wrong)) / sd; 0 where sd is 0, or fewer than k were
    scored. Source: arXiv:2508.10751. Raises unless every score is 0 or 1. Shape: [B, T].
    """
    refuse_degrees(scores)
    right = scores.scored & (scores.total > 0.5)
    samples = group_sum(scores.scored, rollout.group).double()
    wrong = samples - group_sum(right, rollout.group)
    fails = share(wrong, samples, k)  # 1 - mu: k samples, all wrong
    sd = (fails * (1 - fails)).sqrt()
    loss = torch.where(right, 0.0, share(wrong - 1, samples - 1, k - 1))
    worth = torch.where(scores.scored & (sd > 0), (fails - loss) / torch.where(sd > 0, sd, 1), 0)
    return spread_over_steps(worth.to(scores.total.dtype), rollout.mask)


@register_adv_estimator(set_size="k")
def pkpo(
    scores: Scores,
    rollout: Rollout,
    *,
    k: int,  # samples of a set, of which the best counts; at most group_size
) -> Tensor:
    """sum of max(S) over the sets S of k samples that hold this one, over the number of all sets.

    Unbiased for the gradient of the expected best of k, without a baseline: ties are not 0.
    0 where fewer than k were scored. Source: PKPO, arXiv:2505.15201. Shape: [B, T].
    """
    order = ascending(scores.total.double(), scores, rollout.group)
    as_best = order.value * share(order.place, order.count, k, taken=1)
    below = order.value * share(order.place - 1, order.count, k, taken=2)
    above = order.sum_within(below) - order.sum_until(below)
    worth = order.back(as_best + above)
    return spread_over_steps(worth.to(scores.total.dtype), rollout.mask)


@register_adv_estimator(compares="group", set_size="k")
def pkpo_centred(
    scores: Scores,
    rollout: Rollout,
    *,
    # Samples of a set, of which the best counts; 2 to group_size.
    k: Annotated[int, at_least(2)],
) -> Tensor:
    """`pkpo` with max(S) - max(S without this sample) in place of max(S).

    A sample gets its margin in the sets of `k` that it is the best of, so a tie is exactly 0.
    Source: PKPO's leave-one-out baseline, arXiv:2505.15201. Shape: [B, T].
    """
    order = ascending(centre(scores, rollout.group).double(), scores, rollout.group)
    as_best = order.value * share(order.place, order.count, k, taken=1)
    without = order.value * share(order.place, order.count, k, taken=2)
    worth = order.back(as_best - (order.sum_until(without) - without))
    return spread_over_steps(worth.to(scores.total.dtype), rollout.mask)


def refuse_degrees(scores: Scores) -> None:
    """Raise UnusableScores for scores other than 0 and 1, which pass@k needs."""
    binary = (scores.total == 0) | (scores.total == 1)
    if not binary.all():
        raise UnusableScores(
            f"pass_at_k needs scores of 0 or 1, but a sample scored {scores.total[~binary][0]:g}; "
            "leave one reward of 0 and 1, or choose algorithm/advantage=pkpo_centred"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascending:
    """The scored rows, group by group, worst first. N of them."""

    row: Tensor  # [N] original row
    group: Tensor  # [N]
    value: Tensor  # [N]
    place: Tensor  # [N] rank, 0 for the worst of its group
    count: Tensor  # [N] scored rows of its group
    rows: int  # B

    def back(self, x: Tensor) -> Tensor:
        """Values in the original order, [N] -> [B], 0 for rows without a score."""
        return x.new_zeros(self.rows).index_copy(0, self.row, x)

    def sum_within(self, x: Tensor) -> Tensor:
        """Sum over the group, for every row of it: [N] -> [N]."""
        return group_sum(x, self.group)

    def sum_until(self, x: Tensor) -> Tensor:
        """Cumulative sum within the group, including this row: [N] -> [N]."""
        total = x.cumsum(0)
        first = torch.arange(len(x), device=x.device) - self.place
        return total - (total - x)[first]


def ascending(value: Tensor, scores: Scores, group: Tensor) -> Ascending:
    """Sort the scored samples of each group by `value` [B], lowest first."""
    row = scores.scored.nonzero()[:, 0]
    row = row[value[row].argsort(stable=True)]
    row = row[group[row].argsort(stable=True)]
    count = torch.unique_consecutive(group[row], return_counts=True)[1]
    start = (count.cumsum(0) - count).repeat_interleave(count)
    return Ascending(
        row=row,
        group=group[row],
        value=value[row],
        place=torch.arange(len(row), device=row.device) - start,
        count=count.repeat_interleave(count),
        rows=len(value),
    )


def share(n: Tensor, of: Tensor, k: int, *, taken: int = 0) -> Tensor:
    """C(n, k - taken) / C(of, k), 0 where either is impossible. [N] -> [N] float64."""
    logs = log_choose(n.double(), k - taken) - log_choose(of.double(), k)
    return torch.where((n >= k - taken) & (of >= k) & (k >= taken), logs.exp(), 0)


def log_choose(n: Tensor, k: int) -> Tensor:
    """log C(n, k) for 0 <= k <= n; elsewhere an arbitrary finite number: [N] -> [N] float64."""
    k = max(k, 0)
    n = n.clamp(min=k)
    return torch.lgamma(n + 1) - math.lgamma(k + 1) - torch.lgamma(n - k + 1)
