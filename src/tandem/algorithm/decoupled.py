"""The objective on velocity errors, at fresh noise or against a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from tandem.algorithm.coupled import policy_metrics
from tandem.algorithm.objective import KL, POLICY, Objective, Term
from tandem.contracts import facts_of
from tandem.contracts.inner_parts import ask_inner
from tandem.contracts.outputs import OLD_POLICY
from tandem.dynamics.regression import Weighting, energy
from tandem.experience import Experience, statistics_of
from tandem.losses import importance
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch, DecoupledBatch, Rollout, map_fields

# Log-probability fields of a loss -> the errors that replace them.
ERRORS = {"old_logp": "old_error", "ref_logp": "ref_error"}


class DecoupledPolicy(Protocol):
    def errors(self, rollout: Rollout, needs: frozenset[str]) -> Mapping[str, Tensor]: ...


class Decoupled(Objective):
    """The sum of terms whose losses read velocity errors, or log-probabilities derived from them.

    Losses of log-probabilities read logp = -weighting(sigma, mean of error^2), a bound on the
    picture's up to a constant: with it, Advantage Weighted Matching is PPO.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        weighting: Weighting,
        *,
        old_policy: Callable[[CoupledBatch], Tensor] = importance.recompute,
    ) -> None:
        super().__init__(terms)
        self.weighting, self.old_policy = weighting, old_policy
        read = frozenset().union(*(term.needs for term in self.terms.values()))
        if "old_logp" in read:
            read = (read - {"old_logp"}) | facts_of(old_policy).reads
        self.needs = frozenset(ERRORS.get(name, name) for name in read)

    def record(self, policy: DecoupledPolicy, rows: Experience) -> DecoupledBatch:
        rollout = rows.rollout
        inside = keep_inside(rows, policy.errors(rollout, self.needs))
        return DecoupledBatch(mask=rollout.mask, group=rollout.group, key=rollout.key, **inside)

    def by_term(self, record: DecoupledBatch) -> dict[str, DecoupledBatch | CoupledBatch]:
        of_errors = {name for name, own in self.facts.items() if own.on_errors}
        if of_errors == set(self.terms):
            return dict.fromkeys(self.terms, record)
        likely = likelihoods(record, self.weighting)
        old = OLD_POLICY.ask(self.old_policy, likely, mask=likely.mask)
        likely = replace(likely, old_logp=torch.where(likely.mask, old, 0))
        return {name: record if name in of_errors else likely for name in self.terms}

    def measure(self, record: DecoupledBatch, rows: Experience) -> dict[str, Metric]:
        """The metrics of a batch. Rows without advantage count only in the KL to the reference, so
        that metrics do not depend on whether they were skipped or ran for another term."""
        seen, metrics = self.by_term(record), {}
        if record.ref_error is not None:
            distance = energy(record.error - record.ref_error)
            metrics["actor/ref_kl"] = masked_mean(distance, record.mask)
        if KL in self.terms:
            penalty = self.terms[KL].loss(seen[KL], *statistics_of(rows, KL))
            metrics["actor/kl_penalty"] = masked_mean(penalty, rows.weights[KL] != 0)
        if self.facts[POLICY].zero_at_zero_advantage:
            signal = record.advantages.ne(0).any(1, keepdim=True)
            record = replace(record, mask=record.mask & signal)
            seen = {name: replace(own, mask=record.mask) for name, own in seen.items()}
        metrics["actor/velocity_error"] = masked_mean(energy(record.error), record.mask)
        if not self.facts[POLICY].on_errors:
            metrics |= policy_metrics(seen[POLICY])
        return self.measure_parts(metrics, seen, rows)


def keep_inside(rows: Experience, said: Mapping[str, object]) -> dict[str, object]:
    """What a policy said of these rows, [B, T] or [B, T, D], with their advantages and ages; 0
    outside the mask."""
    mask, gap = rows.rollout.mask, rows.rollout.version_gap
    age = None if gap is None else gap.float()
    return map_fields(
        {**said, "advantages": rows.advantages, "version_gap": age},
        lambda x: torch.where(mask[..., None] if x.ndim == 3 else mask, x, 0),
    )


def likelihoods(record: DecoupledBatch, weighting: Weighting) -> CoupledBatch:
    """The same rows with logp = -weighting(sigma, mean of error^2) of every policy."""

    def logp(error: Tensor | None) -> Tensor | None:
        if error is None:
            return None
        sigma, shape = record.sigma, record.sigma.shape
        return -ask_inner(weighting, sigma, energy(error), shape=shape, axes="[B, T]")

    own, old = logp(record.error), logp(record.old_error)
    return CoupledBatch(
        logp=own,
        advantages=record.advantages,
        mask=record.mask,
        group=record.group,
        old_logp=own.detach() if old is None else old,
        ref_logp=logp(record.ref_error),
        version_gap=record.version_gap,
        key=record.key,
    )
