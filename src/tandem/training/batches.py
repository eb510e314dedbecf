"""The batch arithmetic of a run."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.experience import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batch arithmetic of a run."""

    seed: int
    iterations: int
    prompts_per_step: int  # of all ranks together
    group_size: int
    num_minibatches: int
    epochs: int
    budget: Budget
    max_grad_norm: float

    @property
    def updates(self) -> int:
        """Optimiser steps per iteration."""
        return self.num_minibatches * self.epochs
