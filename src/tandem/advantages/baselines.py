"""Returns minus a baseline that does not depend on the group, [B, T]."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.advantages.group import group_sum
from tandem.advantages.temporal import return_to_go, scored_steps, step_rewards
from tandem.contracts import register_adv_estimator
from tandem.contracts.stateful import StatefulComponent
from tandem.types import Rollout, Scores

NO_LIKELIEST = "a flow has no greedy sample to compare with; set algorithm=rloo"

OF_GREEDY_ROWS = {"steps": NO_LIKELIEST, "pictures": NO_LIKELIEST}


# R minus the moving average of earlier iterations
@register_adv_estimator("moving_average", compares="batch")
class MovingAverage(StatefulComponent):
    """G_t - b, b the moving average of the mean scores of the iterations before this one.

    b is divided by 1 - decay^n after n iterations; otherwise it would be near 0 for the first
    1 / (1 - decay) of them. It is 0 in the first one; no sample contributes to its own baseline.
    Source: Williams 1992, REINFORCE with a moving baseline; the correction of b is that of Adam
    (arXiv:1412.6980).
    """

    def __init__(
        self,
        *,
        decay: float = 0.99,  # share of the moving average that an iteration keeps
    ) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"a moving average needs 0 <= decay < 1, not decay={decay}")
        self.decay = decay
        self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        self.register_buffer("iterations", torch.zeros((), dtype=torch.float64))

    @property
    def baseline(self) -> float:
        """The average so far, corrected for its start at 0; 0 before the first iteration."""
        seen = 1 - self.decay ** self.iterations.item()
        return self.average.item() / seen if seen else 0.0

    def report(self) -> dict[str, float]:
        return {"optim/baseline": self.baseline}

    @torch.no_grad()
    def forward(self, scores: Scores, rollout: Rollout) -> Tensor:
        """The rows of all ranks, once per iteration: [B, T]."""
        mask = scored_steps(scores, rollout)
        returns = return_to_go(step_rewards(scores, rollout), mask)
        advantages = torch.where(mask, returns - self.baseline, 0)
        self._observe(scores.total[scores.scored & ~_baseline_rows(rollout)])
        return advantages

    def _observe(self, total: Tensor) -> None:
        if len(total):
            self.average.lerp_(total.double().mean().cpu(), 1 - self.decay)
            self.iterations.add_(1)


# R minus R of the greedy answer (ReMax); set algorithm/sampling_strategy=remax
@register_adv_estimator(reads={"baseline"}, refused=OF_GREEDY_ROWS)
def remax(scores: Scores, rollout: Rollout) -> Tensor:
    """G_t - R of the greedy answer to the same prompt (ReMax, arXiv:2310.10505).

    The greedy row is the one with `rollout.baseline`; a group whose greedy row is missing or has no
    score gets 0. Shape: [B, T].
    """
    greedy = scores.scored & _baseline_rows(rollout)
    count = group_sum(greedy, rollout.group)
    baseline = group_sum(torch.where(greedy, scores.total, 0), rollout.group) / count.clamp(min=1)
    mask = scored_steps(scores, rollout) & (count > 0)[:, None]
    returns = return_to_go(step_rewards(scores, rollout), mask)
    return torch.where(mask, returns - baseline[:, None], 0)


# R minus a constant (TOPR); with a floor of 0 only good samples (RAFT++)
@register_adv_estimator
def raw_reward(
    scores: Scores,
    rollout: Rollout,
    *,
    baseline: float = 0.0,  # constant that is subtracted from every return
    # Smallest advantage; 0: bad samples are not trained on; null: no limit.
    floor: float | None = None,
) -> Tensor:
    """max(G_t - baseline, floor), the same baseline for every sample.

    With `floor=0` only good samples are learnt from (RAFT++, arXiv:2504.11343). Shape: [B, T].
    """
    mask = scored_steps(scores, rollout)
    returns = return_to_go(step_rewards(scores, rollout), mask) - baseline
    return torch.where(mask, returns if floor is None else returns.clamp(min=floor), 0)


def _baseline_rows(rollout: Rollout) -> Tensor:
    """[B] bool: baseline rows, which are never trained."""
    none = torch.zeros_like(rollout.truncated)
    return none if rollout.baseline is None else rollout.baseline
