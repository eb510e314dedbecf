"""The choice of a run's source of rows, by sampler and by sampling ahead."""

from __future__ import annotations

from torch import nn

from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import facts_of
from tandem.data.stream import DrawnAhead, PromptStream
from tandem.rewards import Rewards
from tandem.training.ahead_source import AheadSource
from tandem.training.batches import BatchPlan
from tandem.training.collect import Clock, RolloutSource


def source_of(
    algorithm: Algorithm,
    *,
    policy: nn.Module,
    rewards: Rewards,
    stream: PromptStream,
    plan: BatchPlan,
    clock: Clock,
) -> RolloutSource:
    """The source of rows for this policy and its sampling ahead."""
    if not policy.lagged.staleness:
        return RolloutSource(policy=policy, rewards=rewards, stream=stream, plan=plan, clock=clock)
    sampling = policy.sampling
    drawn = DrawnAhead(stream, ahead=sampling.iterations_ahead, kept=sampling.staleness)
    if not policy.samples_ahead:
        return RolloutSource(policy=policy, rewards=rewards, stream=drawn, plan=plan, clock=clock)
    greedy = "baseline" in facts_of(algorithm.sampling_strategy).gives
    return AheadSource(
        policy=policy, rewards=rewards, stream=drawn, plan=plan, clock=clock, greedy=greedy
    )
