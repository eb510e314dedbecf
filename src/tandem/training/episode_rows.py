"""Rewards per move and metrics of environments, from the episodes of sampled rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tandem import distributed
from tandem.advantages.temporal import on_last_step
from tandem.contracts import facts_of
from tandem.metrics import Max, Metric, Sum
from tandem.rewards import Rewards
from tandem.types import Rollout, Scores, take

PREFIX = "environment/"
ENDS = ("over", "turn_limit", "token_limit", "lost")  # of an episode
BY_TURN = 8  # turns whose reward is reported separately


def spread_over_moves(scores: Scores, rollout: Rollout, rewards: Rewards) -> Scores:
    """Rewards of the environment on their moves, and all other rewards on the last trained step;
    unchanged if no reward is given per move."""
    weights = {
        name: component.weight
        for name, component in rewards.components.items()
        if facts_of(component.function).of_moves and component.weight
    }
    if rollout.feedback is None or not weights or not scores.parts:
        return scores
    # The weight of the rewards that scored each row: a prompt names its rewards.
    weight = sum(own * ~scores.parts[name].isnan() for name, own in weights.items())
    weight = weight * scores.scored
    given = weight[:, None] * torch.where(rollout.mask, rollout.feedback, 0)
    left = scores.total - given.sum(1)
    # The remainder goes to the last move, unless it is only rounding error.
    left = torch.where(left.abs() > 1e-6 * (1 + scores.total.abs()), left, 0)
    return replace(scores, per_step=given + on_last_step(left, rollout.mask))


def episode_metrics(rollout: Rollout) -> dict[str, Metric]:
    """Metrics of all episodes, and of each dataset with its own environment, from the rows of this
    rank. A collective call; the names are the same on all ranks."""
    names = [prompt.episode.get("environment") for prompt in rollout.prompts]
    found = _metrics_of(rollout)
    known = sorted({*distributed.all_gather_object(names)} - {None})
    for name in known:
        rows = torch.tensor([i for i, own in enumerate(names) if own == name], dtype=torch.int64)
        of_name = _metrics_of(take(rollout, rows))
        found |= {f"{name}/{what}": metric for what, metric in of_name.items()}
    return {f"{PREFIX}{name}": metric for name, metric in found.items()}


def _metrics_of(rollout: Rollout) -> dict[str, Metric]:
    """Metrics of some episodes; this rank may have none."""
    told = [prompt.episode for prompt in rollout.prompts]
    turns = rollout.turn.amax(1).double()
    rows = torch.ones_like(turns).sum()
    observed = (rollout.length - rollout.own_length).double()
    lost = torch.tensor(
        [one["end"] == "lost" for one in told], dtype=torch.bool, device=turns.device
    )
    metrics: dict[str, Metric] = {name: Sum(total, rows) for name, total in _counts(told)}
    metrics |= {
        "turns_mean": Sum(turns.sum(), rows),
        "turns_max": Max(turns.amax() if len(turns) else torch.zeros_like(rows)),
        "observed": Sum(observed.sum(), rollout.length.double().sum()),
        "lost_at_turn": Sum(turns[lost].sum(), lost.double().sum()),
        "begun_again": Sum(_count(told, lambda one: one["attempts"] > 1), rows),
    }
    for end in ENDS:
        metrics[end] = Sum(_count(told, lambda one, end=end: one["end"] == end), rows)
    return metrics | dict(_rewards_by_turn(rollout))


def _count(told: list[dict], holds: Callable[[dict], bool]) -> Tensor:
    return torch.tensor(float(sum(map(holds, told))), dtype=torch.float64)


def _counts(told: list[dict]) -> Iterator[tuple[str, Tensor]]:
    """Counts of the environments, by the names of all ranks, summed over rows of this rank."""
    own = list({name for one in told for name in one["counts"]})
    for name in sorted({*distributed.all_gather_object(own)}):
        total = sum(one["counts"].get(name, 0.0) for one in told)
        yield name, torch.tensor(total, dtype=torch.float64)


def _rewards_by_turn(rollout: Rollout) -> Iterator[tuple[str, Metric]]:
    """The mean reward of each of the first moves, over the rows that made it."""
    for number in range(1, BY_TURN + 1):
        own = rollout.turn == number
        made = own.any(1).double().sum()
        yield f"reward_by_turn/{number}", Sum((rollout.feedback * own).double().sum(), made)
