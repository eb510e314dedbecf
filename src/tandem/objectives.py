"""What an update minimises: a sum of terms, each a loss per step times its weights.

An objective asks the policy for what its terms read, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tandem import ranks
from tandem.batches import Experience
from tandem.metrics import Metric, mismatch_metrics, own_metrics, policy_metrics, reference_metrics
from tandem.types import CoupledBatch, Evidence, Rollout, needs, needs_of, vanishes

Weigh = Callable[[Tensor], Tensor]  # mask [B, T] of an update -> weight [B, T]


class CoupledPolicy(Protocol):
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A loss or penalty, its coefficient, and how much each step counts in it."""

    loss: Callable[[CoupledBatch], Tensor]
    coef: float
    weights: Weigh


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one micro-batch: what to call backward on, and what to log."""

    loss: Tensor  # scalar
    parts: Mapping[str, Tensor]  # term -> its share of the loss, detached
    metrics: Mapping[str, Metric]


@needs("entropy")
def entropy_bonus(batch: CoupledBatch) -> Tensor:
    """Minus the entropy of the full distribution, [B, T] nats."""
    return -batch.entropy


class Coupled:
    """Train on the very steps that were sampled. Terms with coefficient 0 do not exist."""

    def __init__(self, terms: Mapping[str, Term]) -> None:
        self.terms = {name: term for name, term in terms.items() if term.coef != 0}
        self.needs = frozenset().union(*(needs_of(term.loss) for term in self.terms.values()))
        self.vanishes = all(vanishes(term.loss) for term in self.terms.values())

    def weigh(self, mask: Tensor) -> dict[str, Tensor]:
        """The weights of every term over one update, [B, T]; `mask` has this rank's rows of it."""
        return {name: ranks.over_all(term.weights)(mask) for name, term in self.terms.items()}

    def __call__(self, policy: CoupledPolicy, rows: Experience) -> Outcome:
        batch = self.record(policy, rows)
        parts = {
            name: term.coef * (term.loss(batch) * rows.weights[name]).sum()
            for name, term in self.terms.items()
        }
        with torch.no_grad():
            metrics = self.measure(batch, rows.weights)
        shares = {name: part.detach() for name, part in parts.items()}
        return Outcome(loss=sum(parts.values()), parts=shares, metrics=metrics)

    def record(self, policy: CoupledPolicy, rows: Experience) -> CoupledBatch:
        rollout = rows.rollout
        evidence = policy.evidence(rollout, self.needs)
        old_logp = rollout.old_logp
        fields = {
            "logp": evidence.logp,
            "advantages": rows.advantages,
            # With one update per rollout the sampling weights are the current ones.
            "old_logp": evidence.logp.detach() if old_logp is None else old_logp,
            "behaviour_logp": rollout.behaviour_logp,
            "ref_logp": rollout.ref_logp,
            "entropy": evidence.entropy,
        }
        inside = {
            k: None if v is None else torch.where(rollout.mask, v, 0) for k, v in fields.items()
        }
        return CoupledBatch(mask=rollout.mask, group=rollout.group, **inside)

    def measure(self, batch: CoupledBatch, weights: Mapping[str, Tensor]) -> dict[str, Metric]:
        """Over the steps that count, an idle micro-batch adds nothing.

        Rows without advantage are left out of all but the KL to the reference, whether they were
        skipped or ran for the sake of another term: a metric must not depend on which.
        """
        counted = torch.stack([weight != 0 for weight in weights.values()]).any(0)
        batch = replace(batch, mask=batch.mask & counted)
        metrics = {} if batch.ref_logp is None else reference_metrics(batch)
        if vanishes(self.terms["policy"].loss):
            signal = batch.advantages.ne(0).any(1, keepdim=True)
            batch = replace(batch, mask=batch.mask & signal)
        metrics = policy_metrics(batch) | metrics
        if batch.behaviour_logp is not None:
            metrics |= mismatch_metrics(batch)
        for term in self.terms.values():
            metrics |= own_metrics(term.loss, batch)
        return metrics
