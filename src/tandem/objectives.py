"""What an update minimises: a sum of terms, each a loss per step times its weights.

An objective asks the policy for what its terms read, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from tandem import corrections, ranks
from tandem.batches import Experience, rows_of
from tandem.declarations import compares_rows, needs, needs_of, refused_on, survey_of, vanishes
from tandem.losses.adapted import refuse_part
from tandem.metrics import (
    Metric,
    masked_mean,
    mismatch_metrics,
    own_metrics,
    policy_metrics,
    reference_metrics,
)
from tandem.types import CoupledBatch, Evidence, Rollout, concat, each, pad_steps, take

Weigh = Callable[[Tensor], Tensor]  # mask [B, T] of an update -> weight [B, T]
POLICY = "policy"  # the term that a correction multiplies
KL = "kl"  # the term whose mean is logged as it is


class CoupledPolicy(Protocol):
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A loss or penalty, its coefficient, and how much each step counts in it."""

    loss: Callable[..., Tensor]
    coef: float | nn.Module  # a module is a number that a controller moves
    weights: Weigh
    correction: corrections.Correction = corrections.none

    @property
    def exists(self) -> bool:
        return isinstance(self.coef, nn.Module) or self.coef != 0

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(self.loss) | needs_of(self.correction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one micro-batch: what to call backward on, and what to log."""

    loss: Tensor  # scalar
    parts: Mapping[str, Tensor]  # term -> its share of the loss, detached
    metrics: Mapping[str, Metric]


@refused_on(
    steps="the entropy of a Gaussian step is a constant of its noise level, which nothing trained "
    "can raise; set algorithm.entropy.coef=0",
    pictures="a regression error belongs to no distribution, so it has no entropy; set "
    "algorithm.entropy.coef=0",
)
@needs("entropy")
def entropy_bonus(batch: CoupledBatch) -> Tensor:
    """Minus the entropy of the full distribution, [B, T] nats."""
    return -batch.entropy


class Coupled:
    """Train on the very steps that were sampled. Terms with coefficient 0 do not exist."""

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        old_policy: Callable[[CoupledBatch], Tensor] = corrections.recomputed,
    ) -> None:
        self.terms = {name: term for name, term in terms.items() if term.exists}
        self.old_policy = old_policy
        read = frozenset().union(*(term.needs for term in self.terms.values()))
        # Every record has an old policy, but only those who read it pay a forward pass for it.
        unread = frozenset() if "old_logp" in read else {"old_logp"}
        self.needs = (read - {"old_logp"}) | (needs_of(old_policy) - unread)
        self.vanishes = all(vanishes(term.loss) for term in self.terms.values())
        self.whole_groups = any(compares_rows(term.loss) for term in self.terms.values())
        surveys = {name: survey_of(term.loss) for name, term in self.terms.items()}
        self.surveys = {name: survey for name, survey in surveys.items() if survey is not None}

    def weigh(self, mask: Tensor) -> dict[str, Tensor]:
        """The weights of every term over one update, [B, T]; `mask` has this rank's rows of it."""
        return {name: ranks.over_all(term.weights)(mask) for name, term in self.terms.items()}

    @torch.no_grad()
    def survey(
        self, policy: CoupledPolicy, rows: Experience, cut: Callable[[], Sequence[Tensor]]
    ) -> Experience:
        """Let losses look at all rows of an update, before any cut; most have no wish to."""
        if not self.surveys:
            return rows
        parts = cut()
        records = concat([self.record(policy, rows_of(rows, part)) for part in parts])
        batch = take(records, torch.cat(list(parts)).argsort())
        found = {name: ranks.over_all(survey)(batch) for name, survey in self.surveys.items()}
        width = rows.rollout.mask.shape[1]
        return replace(rows, surveyed={n: pad_steps(x, width) for n, x in found.items()})

    def __call__(self, policy: CoupledPolicy, rows: Experience) -> Outcome:
        batch = self.record(policy, rows)
        parts = {name: self.part(name, batch, rows) for name in self.terms}
        with torch.no_grad():
            metrics = self.measure(batch, rows)
        shares = {name: part.detach() for name, part in parts.items()}
        loss = sum(parts.values())
        if POLICY not in self.terms:  # its weights take part all the same: DDP waits for them
            loss = loss + 0 * batch.logp.sum()
        return Outcome(loss=loss, parts=shares, metrics=metrics)

    def part(self, name: str, batch: CoupledBatch, rows: Experience) -> Tensor:
        """One term: sum over steps of coef * loss * correction * weight."""
        term = self.terms[name]
        loss = term.loss(batch, *_found(rows, name))
        weight = rows.weights[name]
        refuse_part(term.loss, weight)
        if term.correction is not corrections.none:
            weight = weight * term.correction(batch)
        return float(term.coef) * (loss * weight).sum()

    def record(self, policy: CoupledPolicy, rows: Experience) -> CoupledBatch:
        rollout = rows.rollout
        evidence = policy.evidence(rollout, self.needs)
        fields = {
            "logp": evidence.logp,
            "advantages": rows.advantages,
            "old_logp": rollout.old_logp,
            "behaviour_logp": rollout.behaviour_logp,
            "ref_logp": rollout.ref_logp,
            "version_gap": _gap(rollout) if "version_gap" in self.needs else None,
            "entropy": evidence.entropy,
            "likeliest": evidence.likeliest,
            "values": evidence.values,
            "old_values": rollout.old_values,
            "returns": rows.returns,
            "transition": evidence.transition,
        }
        inside = {
            name: each(known, lambda tensor: torch.where(rollout.mask, tensor, 0))
            for name, known in fields.items()
        }
        batch = CoupledBatch(
            mask=rollout.mask,
            group=rollout.group,
            key=rollout.key,
            baseline=rollout.baseline,
            **inside,
        )
        return replace(batch, old_logp=torch.where(batch.mask, self.old_policy(batch), 0))

    def measure(self, batch: CoupledBatch, rows: Experience) -> dict[str, Metric]:
        """Over the steps that count, an idle micro-batch adds nothing.

        Rows without advantage are left out of all but the KL to the reference, whether they were
        skipped or ran for the sake of another term: a metric must not depend on which.
        """
        counted = torch.stack([weight != 0 for weight in rows.weights.values()]).any(0)
        batch = replace(batch, mask=batch.mask & counted)
        metrics = reference_metrics(batch, rows.rollout.old_kl_to_ref)
        if KL in self.terms:
            penalty = self.terms[KL].loss(batch, *_found(rows, KL))
            metrics["actor/kl_penalty"] = masked_mean(penalty, batch.mask)
        if POLICY in self.terms and vanishes(self.terms[POLICY].loss):
            signal = batch.advantages.ne(0).any(1, keepdim=True)
            batch = replace(batch, mask=batch.mask & signal)
        metrics = {"actor/nll": masked_mean(-batch.logp, batch.mask)} | metrics
        if batch.behaviour_logp is not None:
            metrics = policy_metrics(batch) | metrics
            own = self.old_policy is corrections.recomputed
            trainer = batch.old_logp if own else batch.logp
            metrics |= mismatch_metrics(replace(batch, old_logp=trainer))
        for name, term in self.terms.items():
            metrics |= own_metrics(term.loss, batch, *_found(rows, name))
            if term.correction is not corrections.none:
                metrics |= corrections.effect(batch, term.correction(batch))
                metrics |= own_metrics(term.correction, batch)
        return metrics


def _found(rows: Experience, term: str) -> tuple[Tensor, ...]:
    """What the loss of a term found in all rows of the update; nothing for most losses."""
    return (rows.surveyed[term],) if term in rows.surveyed else ()


def _gap(rollout: Rollout) -> Tensor:
    """Fresh rows are of the current version."""
    if rollout.version_gap is None:
        return torch.zeros_like(rollout.mask, dtype=torch.float32)
    return rollout.version_gap.float()
