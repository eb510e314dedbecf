"""The objective on log-probabilities of sampled steps, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from tandem.algorithm.objective import KL, POLICY, Objective, Term
from tandem.contracts import declare, facts_of
from tandem.contracts.outputs import OLD_POLICY
from tandem.experience import Experience, statistics_of
from tandem.losses import importance
from tandem.losses.policy import k3_of
from tandem.metrics import Max, Metric, masked_mean
from tandem.types import CoupledBatch, Evidence, Rollout, map_fields, taught_steps


class CoupledPolicy(Protocol):
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence: ...


NO_ENTROPY = {
    "steps": "the entropy of a Gaussian step is a constant of its noise level, which nothing "
    "trained can raise; set algorithm.entropy.coef=0",
    "bounds": "a bound on log p is not a distribution and has no entropy; set "
    "algorithm.entropy.coef=0",
    "pictures": "a regression error is not a distribution and has no entropy; set "
    "algorithm.entropy.coef=0",
}


@declare(reads={"entropy"}, refused=NO_ENTROPY, where_it_can=True)
def entropy_bonus(batch: CoupledBatch) -> Tensor:
    """Minus the entropy of the full distribution, [B, T] nats."""
    return -batch.entropy


MISMATCH = frozenset(
    f"rollout_corr/{name}"
    for name in ("abs_logp_diff", "abs_logp_diff_fresh", "k1", "k3", "chi2_token", "chi2_seq")
)


class Coupled(Objective):
    """The sum of terms whose losses read log-probabilities of sampled steps."""

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        old_policy: Callable[[CoupledBatch], Tensor] = importance.recompute,
        likelihood: Callable | None = None,  # of masked texts
    ) -> None:
        super().__init__(terms)
        self.of_parts = facts_of(likelihood).splits_bound
        self.old_policy = old_policy
        self.recomputes = facts_of(old_policy).old_policy == "recompute"
        self.of_first_update = frozenset() if self.recomputes else MISMATCH
        read = frozenset().union(*(term.needs for term in self.terms.values()))
        # Every record has an old policy, but only if it is read does it cost a forward pass.
        unread = frozenset() if "old_logp" in read else {"old_logp"}
        self.needs = (read - {"old_logp"}) | (facts_of(old_policy).reads - unread)

    def record(self, policy: CoupledPolicy, rows: Experience) -> CoupledBatch:
        rollout, gap = rows.rollout, rows.rollout.version_gap
        evidence = policy.evidence(rollout, self.needs)
        start = rollout.old_logp  # under the weights at the start of the update
        if start is None and "old_logp" in facts_of(self.old_policy).reads:
            start = evidence.logp.detach()  # of the only update, or unread
        fields = {
            "logp": evidence.logp,
            "advantages": rows.advantages,
            "old_logp": start,
            "behaviour_logp": rollout.behaviour_logp,
            "ref_logp": rollout.ref_logp,
            "version_gap": None if gap is None else gap.float(),
            "entropy": evidence.entropy,
            "likeliest": evidence.likeliest,
            "upper_logp": evidence.upper_logp,
            "values": evidence.values,
            "old_values": rollout.old_values,
            "returns": rows.returns,
            "teacher_logp": rollout.teacher_logp,
            "divergence": evidence.divergence,
            "transition": evidence.transition,
            "segment": rollout.segment,
        }
        inside = map_fields(fields, lambda tensor: torch.where(rollout.mask, tensor, 0))
        batch = CoupledBatch(
            mask=rollout.mask,
            group=rollout.group,
            key=rollout.key,
            baseline=rollout.baseline,
            taught=rollout.taught,
            **inside,
        )
        old_logp = OLD_POLICY.ask(self.old_policy, batch, mask=batch.mask)
        return replace(batch, old_logp=torch.where(batch.mask, old_logp, 0))

    def measure(self, batch: CoupledBatch, rows: Experience) -> dict[str, Metric]:
        """The metrics of a batch. Rows without advantage count only in the KL to the reference, so
        that metrics do not depend on whether they were skipped or ran for another term.
        """
        to_ref = rows.rollout.old_kl_to_ref
        metrics = {} if self.of_parts else reference_metrics(batch, to_ref)
        if batch.teacher_logp is not None or batch.divergence is not None:
            metrics |= teacher_metrics(batch)
        if KL in self.terms:
            penalty = self.terms[KL].loss(batch, *statistics_of(rows, KL))
            metrics["actor/kl_penalty"] = masked_mean(penalty, rows.weights[KL] != 0)
        if POLICY in self.terms and self.facts[POLICY].zero_at_zero_advantage:
            signal = batch.advantages.ne(0).any(1, keepdim=True)
            batch = replace(batch, mask=batch.mask & signal)
        metrics = {"actor/nll": masked_mean(-batch.logp, batch.mask)} | metrics
        if batch.behaviour_logp is not None or rows.rollout.old_logp is not None:
            metrics = policy_metrics(batch, of_parts=self.of_parts) | metrics
        if batch.behaviour_logp is not None:
            trainer = batch.old_logp if self.recomputes else batch.logp
            batch_of_trainer = replace(batch, old_logp=trainer)
            metrics |= mismatch_metrics(batch_of_trainer)
            if rows.rollout.version_gap is not None:
                metrics |= fresh_mismatch(batch_of_trainer)
        return self.measure_parts(metrics, self.by_term(batch), rows)


def policy_metrics(batch: CoupledBatch, *, of_parts: bool = False) -> dict[str, Metric]:
    """The change of the policy since sampling, over the trained steps.

    `of_parts`: steps are parts of a bound on log p of the whole sample, each weighted by up to its
    length. Only their sums are compared, as exp of a part is no ratio of probabilities.
    """
    log_ratio = batch.logp - batch.old_logp
    means = {"actor/nll": -batch.logp, "actor/approx_kl_k1": -log_ratio}
    metrics = {"actor/log_ratio_max": Max(torch.where(batch.mask, log_ratio.abs(), 0).max())}
    if not of_parts:
        means |= {
            "actor/ratio_mean": log_ratio.exp(),
            "actor/approx_kl_k2": log_ratio.square() / 2,
            "actor/approx_kl_k3": k3_of(batch.old_logp, batch.logp),
        }
        # Without a reference this is the drift of the update; with one, the KL to it.
        means["actor/grpo_kl"] = means["actor/approx_kl_k3"]
        metrics["actor/ratio_max"] = Max(torch.where(batch.mask, log_ratio.exp(), -torch.inf).max())
    return metrics | {name: masked_mean(x, batch.mask) for name, x in means.items()}


def reference_metrics(
    batch: CoupledBatch, old_kl_to_ref: Tensor | None = None
) -> dict[str, Metric]:
    """The KL to the frozen reference in nats, whatever distance the penalty uses.

    Exact for Gaussian steps, k3 for tokens; with a KL in the reward it is the amount charged, in
    nats of whole steps. Empty without a reference; undefined for parts of a bound.
    actor/kl_penalty is what the coefficient multiplies, and differs if the penalty is another
    distance. `old_kl_to_ref`: [B, T].
    """
    if batch.transition is not None and batch.transition.kl_to_ref is not None:
        kl = batch.transition.kl_to_ref
    elif batch.ref_logp is not None:
        kl = k3_of(batch.logp, batch.ref_logp)
    elif old_kl_to_ref is not None:
        kl = old_kl_to_ref
    else:
        return {}
    mean = masked_mean(kl, batch.mask)
    return {"actor/grpo_kl": mean, "actor/ref_kl": mean}


def teacher_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """The distance to the teacher in nats per step: the divergence, or the reverse KL estimated
    from sampled tokens; and the share of steps with a teacher."""
    steps, distance = taught_steps(batch), batch.divergence
    distance = batch.old_logp - batch.teacher_logp if distance is None else distance
    metrics = {"actor/teacher_distance": masked_mean(distance, steps)}
    if batch.taught is not None:
        metrics["actor/taught"] = masked_mean(steps, batch.trained)
    return metrics


def has_signal(report: Mapping[str, float], by_scores: bool, *, skips: bool) -> bool:
    """Whether there was something to learn from: an advantage or, unless it learns `by_scores`, a
    sample with a teacher. `skips`: rows without an advantage are left out, and of them alone
    `actor/taught` is not measured."""
    if by_scores or (skips and "actor/taught" not in report):
        return bool(report.get("actor/adv_mean") or report.get("actor/adv_std"))
    return bool(report.get("actor/taught", True))


def mismatch_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """The mismatch of sampler and trainer log-probabilities for the same weights, which are those
    of the first update alone if none were recomputed before it."""
    gap = torch.where(batch.mask, batch.old_logp - batch.behaviour_logp, 0)
    return {
        "rollout_corr/abs_logp_diff": masked_mean(gap.abs(), batch.mask),
        "rollout_corr/k1": masked_mean(-gap, batch.mask),
        "rollout_corr/k3": masked_mean(k3_of(batch.behaviour_logp, batch.old_logp), batch.mask),
        "rollout_corr/chi2_token": masked_mean((2 * gap).exp() - 1, batch.mask),
        "rollout_corr/chi2_seq": masked_mean((2 * gap.sum(1)).exp() - 1, batch.mask.any(1)),
    }


def fresh_mismatch(batch: CoupledBatch) -> dict[str, Metric]:
    """The mismatch on rows of the newest weights, if there are older ones too. A row that others
    began is left out: its later steps read keys and values that those computed."""
    gap = (batch.old_logp - batch.behaviour_logp).abs()
    oldest = torch.where(batch.mask, batch.version_gap, 0).amax(1, keepdim=True)
    fresh = batch.mask & (oldest == 0)
    return {"rollout_corr/abs_logp_diff_fresh": masked_mean(gap, fresh)}
