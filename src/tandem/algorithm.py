"""An algorithm: which scores are compared how, which loss is weighed how, and a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from tandem import ranks
from tandem.batches import Experience
from tandem.objectives import Coupled, Term, Weigh
from tandem.types import CoupledBatch, Rollout, Scores, needs_of
from tandem.weights import token_mean

Loss = Callable[[CoupledBatch], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """A term beside the policy loss; 0 switches it off, and what it needs with it."""

    coef: float
    loss: Loss


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What one YAML of conf/algorithm binds. The loop reads it and never learns which it is."""

    collect: Callable[..., tuple[Rollout, Scores]]  # where the rows of an iteration come from
    truncated: Callable[[Scores, Rollout], tuple[Scores, Rollout]]
    advantage: Callable[[Scores, Rollout], Tensor]
    loss: Loss
    weights: Weigh
    kl: Penalty  # to the frozen reference
    entropy: Penalty
    group_size: int
    num_minibatches: int
    epochs: int

    @cached_property
    def objective(self) -> Coupled:
        # A penalty keeps the token mean, so that its coefficient means the same beside any loss.
        penalties = {"kl": self.kl, "entropy": self.entropy}
        terms = {
            n: Term(loss=p.loss, coef=p.coef, weights=token_mean) for n, p in penalties.items()
        }
        return Coupled({"policy": Term(loss=self.loss, coef=1.0, weights=self.weights)} | terms)

    @property
    def needs(self) -> frozenset[str]:
        parts = (self.collect, self.truncated, self.advantage)
        return self.objective.needs.union(*(needs_of(part) for part in parts))

    def experience(self, scores: Scores, rollout: Rollout) -> Experience:
        """Shape the scores, then compare them over the rows of all ranks."""
        scores, rollout = self.truncated(scores, rollout)
        advantages = ranks.over_all(self.advantage)(scores, rollout)
        return Experience(rollout=rollout, scores=scores, advantages=advantages)
