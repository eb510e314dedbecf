"""The adapter from an estimator on rewards and a mask to one on scores and a rollout."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from tandem.advantages.temporal import scored_steps, step_rewards
from tandem.contracts.wrong_output import WrongOutput
from tandem.types import Rollout, Scores

OfRewards = Callable[..., tuple[Tensor, Tensor]]
Estimator = Callable[..., Tensor]


def from_rewards(function: OfRewards) -> Estimator:
    """`(rewards, mask, *, numbers) -> (advantages, returns)` as `(scores, rollout) -> advantages`.

    All [B, T], over the rows of all ranks. `rewards` has each sample's total on its last trained
    step unless the scores spread it; `mask` is True on trained steps of samples with a score, and
    advantages elsewhere are 0. Returns must have the shape but are not used: a critic computes its
    own targets. The numbers are the function's own keywords.
    """

    @functools.wraps(function)
    def advantage(scores: Scores, rollout: Rollout, **numbers: object) -> Tensor:
        mask = scored_steps(scores, rollout)
        answer = function(step_rewards(scores, rollout), mask, **numbers)
        match answer:
            case (Tensor() as advantages, Tensor() as returns):
                for name, found in (("advantages", advantages), ("returns", returns)):
                    if found.shape != mask.shape:
                        raise WrongOutput(
                            f"{function.__name__}.{name} is {tuple(found.shape)}, but it should be "
                            f"{tuple(mask.shape)}"
                        )
                return torch.where(mask, advantages, 0)
        raise WrongOutput(
            f"{function.__name__}(rewards, mask) gives (advantages, returns), two tensors "
            f"{list(mask.shape)}, but it gave {type(answer).__name__}"
        )

    return advantage
