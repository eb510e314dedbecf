"""The plan of a run: its batch arithmetic, and the rollout fields its updates need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import facts_of
from tandem.experience import Budget

GIVEN = frozenset({"demonstrations", "pairs"})  # needs of strategies that do not sample


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batch arithmetic of a run."""

    seed: int
    iterations: int
    prompts_per_step: int  # prompts of an iteration, of all ranks together
    group_size: int
    num_minibatches: int
    epochs: int
    budget: Budget
    max_grad_norm: float

    @property
    def updates(self) -> int:
        """Optimiser steps per iteration."""
        return self.num_minibatches * self.epochs

    def is_refill(self, slots: Iterable[int]) -> bool:
        """Whether these slots are of a further round, after the prompts of the iteration."""
        return min(slots, default=0) >= self.prompts_per_step


def needs_of(algorithm: Algorithm, plan: BatchPlan) -> frozenset[str]:
    """The fields of a rollout that `complete` fills.

    With one update per rollout, the old log-probabilities are those of the update itself, unless
    the advantage reads them. With several they are computed even if no loss reads them, because
    metrics and guards do.
    """
    needs, old = algorithm.needs, frozenset({"old_logp"})
    if needs & GIVEN or old & algorithm.needs_before:
        return needs
    if plan.updates == 1:
        return needs - old
    # The baseline for the change of the policy within an iteration.
    return needs if algorithm.reads_errors else needs | facts_of(algorithm.old_logprobs).reads
