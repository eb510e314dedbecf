"""The critic of an actor-critic: targets and metrics of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tandem import distributed
from tandem.algorithm.objective import Term
from tandem.contracts import at_least
from tandem.contracts.outputs import RETURNS
from tandem.experience import Experience
from tandem.losses.critic import explained_variance
from tandem.losses.reduction import token_mean
from tandem.types import Rollout, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The training of a critic: the loss and the targets of its values, and its warm-up."""

    coef: Annotated[float, at_least(0)]  # factor of the critic's loss in the sum, above 0
    loss: Callable[..., Tensor]  # loss of a value, for each step
    returns: Callable[[Scores, Rollout], Tensor]  # targets of the values
    lr: Annotated[float, at_least(0)]  # learning rate of the critic
    warmup: Annotated[int, at_least(0)]  # first iterations, in which only the critic is trained

    def __post_init__(self) -> None:
        if self.coef <= 0:
            raise ValueError(
                f"algorithm.critic.coef={self.coef} does not train the critic; set it above 0, or "
                "choose an algorithm without a critic"
            )

    @property
    def term(self) -> Term:
        return Term(loss=self.loss, coef=self.coef, weights=token_mean)

    def expect(self, scores: Scores, rollout: Rollout) -> Tensor:
        """The targets of the values, [B, T]."""
        return RETURNS.ask(self.returns, scores, rollout, mask=rollout.mask)

    def report(self, experience: Experience, trained: Tensor) -> dict[str, float]:
        """Metrics of an iteration over all ranks. `trained`: [B, T] mask of trained steps."""
        returns = distributed.gather(experience.returns)
        values = distributed.gather(experience.rollout.old_values)
        scored = distributed.gather(experience.scores.scored)[:, None]
        explained = explained_variance(returns, values, trained & scored)
        return {"critic/explained_variance": explained}
