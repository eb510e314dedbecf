"""Train on the very steps that were sampled, by how likely they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from tandem.algorithm.metrics import mismatch_metrics, policy_metrics, reference_metrics
from tandem.algorithm.objective import KL, POLICY, Objective, Term, counted, found
from tandem.contracts import declare, facts_of
from tandem.contracts.outputs import OLD_POLICY
from tandem.experience import Experience
from tandem.losses import importance
from tandem.metrics import Metric, masked_mean
from tandem.types import CoupledBatch, Evidence, Rollout, each


class CoupledPolicy(Protocol):
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence: ...


NO_ENTROPY = {
    "steps": "the entropy of a Gaussian step is a constant of its noise level, which nothing "
    "trained can raise; set algorithm.entropy.coef=0",
    "pictures": "a regression error belongs to no distribution, so it has no entropy; set "
    "algorithm.entropy.coef=0",
}


@declare(reads={"entropy"}, refused=NO_ENTROPY)
def entropy_bonus(batch: CoupledBatch) -> Tensor:
    """Minus the entropy of the full distribution, [B, T] nats."""
    return -batch.entropy


class Coupled(Objective):
    """Terms over the log-probabilities of steps that were sampled."""

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        old_policy: Callable[[CoupledBatch], Tensor] = importance.recompute,
    ) -> None:
        super().__init__(terms)
        self.old_policy = old_policy
        read = frozenset().union(*(term.needs for term in self.terms.values()))
        # Every record has an old policy, but only those who read it pay a forward pass for it.
        unread = frozenset() if "old_logp" in read else {"old_logp"}
        self.needs = (read - {"old_logp"}) | (facts_of(old_policy).reads - unread)

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
        old_logp = OLD_POLICY.check(self.old_policy, self.old_policy(batch), batch.mask)
        return replace(batch, old_logp=torch.where(batch.mask, old_logp, 0))

    def measure(self, batch: CoupledBatch, rows: Experience) -> dict[str, Metric]:
        """Over the steps that count, an idle micro-batch adds nothing.

        Rows without advantage are left out of all but the KL to the reference, whether they were
        skipped or ran for the sake of another term: a metric must not depend on which.
        """
        batch = replace(batch, mask=batch.mask & counted(rows))
        metrics = reference_metrics(batch, rows.rollout.old_kl_to_ref)
        if KL in self.terms:
            penalty = self.terms[KL].loss(batch, *found(rows, KL))
            metrics["actor/kl_penalty"] = masked_mean(penalty, batch.mask)
        if POLICY in self.terms and facts_of(self.terms[POLICY].loss).zero_at_zero_advantage:
            signal = batch.advantages.ne(0).any(1, keepdim=True)
            batch = replace(batch, mask=batch.mask & signal)
        metrics = {"actor/nll": masked_mean(-batch.logp, batch.mask)} | metrics
        if batch.behaviour_logp is not None:
            metrics = policy_metrics(batch) | metrics
            own = facts_of(self.old_policy).old_policy == "recompute"
            trainer = batch.old_logp if own else batch.logp
            metrics |= mismatch_metrics(replace(batch, old_logp=trainer))
        for name, term in self.terms.items():
            if self.metrics[name] is not None:
                metrics |= self.metrics[name](batch, *found(rows, name))
            if term.corrects:
                metrics |= importance.effect(batch, term.correction(batch))
                own = self.metrics_of_corrections[name]
                metrics |= {} if own is None else own(batch)
        return metrics


def _gap(rollout: Rollout) -> Tensor:
    """Fresh rows are of the current version."""
    if rollout.version_gap is None:
        return torch.zeros_like(rollout.mask, dtype=torch.float32)
    return rollout.version_gap.float()
