"""Advantages of the moves of episodes, each compared with moves of its group: [B, T].

The value of a move is its return: later rewards, discounted per turn and not per token.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import Scale, centre, divide, group_relative
from tandem.advantages.temporal import scored_steps, step_rewards
from tandem.contracts import at_least, fraction, register_adv_estimator
from tandem.types import Rollout, Scores

OF_EPISODES = {
    "steps": "a picture has no replies between its steps; set algorithm/advantage=flow_grpo",
    "pictures": "a picture has no replies between its steps; set "
    "algorithm/advantage=group_relative",
}


@register_adv_estimator(
    compares="group", reads={"turn", "state"}, in_time=True, refused=OF_EPISODES
)
def group_in_group(
    scores: Scores,
    rollout: Rollout,
    *,
    scale: Scale | None,  # spread of a group that scores are divided by; null: no division
    # Factor of the moves' advantages, beside that of the episode.
    weight: Annotated[float, at_least(0)] = 1.0,
    gamma: Annotated[float, fraction] = 0.95,  # discount per turn of the rewards of later moves
    eps: Annotated[float, at_least(0)] = 1e-6,  # added to the spread that scores are divided by
) -> Tensor:
    """GRPO's advantage of the episode plus `weight` times that of the move among all moves of its
    group that start in the same state.

    A state visited once, or without a name, adds nothing. Shape: [B, T]. Source: GiGPO,
    arXiv:2505.10978.
    """
    whole = group_relative(scores, rollout, scale=scale, eps=eps)
    states = by_turn(rollout.state, rollout.turn)
    own = relative_moves(scores, rollout, states, gamma=gamma, scale=scale, eps=eps)
    return whole + weight * own


@register_adv_estimator(compares="group", reads={"turn"}, in_time=True, refused=OF_EPISODES)
def turn_to_go(
    scores: Scores,
    rollout: Rollout,
    *,
    scale: Scale | None,  # spread of a group that scores are divided by; null: no division
    gamma: Annotated[float, fraction] = 1.0,  # discount per turn of the rewards of later moves
    eps: Annotated[float, at_least(0)] = 1e-6,  # added to the spread that returns are divided by
) -> Tensor:
    """The return of a move among the moves of its group in the same turn.

    It is GRPO's advantage if only the last move is rewarded and all episodes have equal length.
    Shape: [B, T]. Tandem's own.
    """
    turns = by_turn(rollout.turn, rollout.turn)
    return relative_moves(scores, rollout, turns, gamma=gamma, scale=scale, eps=eps)


def relative_moves(
    scores: Scores,
    rollout: Rollout,
    names: Tensor,
    *,
    gamma: float,
    scale: Scale | None,
    eps: float,
) -> Tensor:
    """(G - mean) / (scale + eps) over moves of a group with the same name, on each step of a move.

    `names`: [B, K] int64; a move with name 0 (none) gets 0. Shape: [B, T].
    """
    returns = turn_returns(scores, rollout, gamma=gamma)
    made = by_turn(scored_steps(scores, rollout).long(), rollout.turn) > 0
    compared = made & (names != 0)
    group = rollout.group[:, None].expand_as(names)
    pairs = torch.stack([group[compared], names[compared]])
    moves = torch.unique(pairs, dim=1, return_inverse=True)[1]  # of [N], N moves
    total = returns[compared]
    alone = Scores(total=total, parts={}, scored=torch.ones_like(moves, dtype=torch.bool))
    centred = centre(alone, moves)
    if scale is not None:
        centred = divide(centred, scale(alone, moves) + eps)
    found = torch.zeros_like(returns).masked_scatter(compared, centred)
    return torch.where(scored_steps(scores, rollout), at_turn(found, rollout.turn), 0)


def turn_returns(scores: Scores, rollout: Rollout, *, gamma: float) -> Tensor:
    """G_k = r_k + gamma G_k+1 of each turn, r_k the sum of rewards on its steps: [B, K]."""
    turn = rollout.turn
    rewards = step_rewards(scores, rollout)
    of_turn = rewards.new_zeros(len(turn), int(turn.max()) + 1).scatter_add(1, turn, rewards)
    returns, later = torch.zeros_like(of_turn[:, 1:]), torch.zeros_like(of_turn[:, 0])
    for k in reversed(range(returns.shape[1])):
        returns[:, k] = later = of_turn[:, k + 1] + gamma * later
    return returns


def by_turn(x: Tensor, turn: Tensor) -> Tensor:
    """The largest x of the steps of each turn, 0 where a row has no such turn: [B, T] -> [B, K]."""
    blank = x.new_zeros(len(x), int(turn.max()) + 1)
    return blank.scatter_reduce(1, turn, x, "amax")[:, 1:]


def at_turn(x: Tensor, turn: Tensor) -> Tensor:
    """The value of each step's turn, 0 for steps without a turn: [B, K], [B, T] -> [B, T]."""
    return torch.nn.functional.pad(x, (1, 0)).gather(1, turn)
