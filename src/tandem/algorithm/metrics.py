"""Training metrics of an iteration: policy drift, advantages, rewards, responses."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.losses.kl import k2_of, k3_of
from tandem.metrics import Max, Metric, masked_mean
from tandem.types import CoupledBatch, Rollout, Scores


def policy_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """How far the policy has moved from the sampling weights, over the steps that were trained."""
    log_ratio = batch.logp - batch.old_logp
    means = {
        "actor/nll": -batch.logp,
        "actor/ratio_mean": log_ratio.exp(),
        "actor/approx_kl_k1": -log_ratio,
        "actor/approx_kl_k2": k2_of(batch.logp, batch.old_logp),
        "actor/approx_kl_k3": k3_of(batch.old_logp, batch.logp),
    }
    # Without a reference, the drift of this update; with one, the KL to it takes this name.
    means["actor/grpo_kl"] = means["actor/approx_kl_k3"]
    metrics = {name: masked_mean(x, batch.mask) for name, x in means.items()}
    metrics["actor/ratio_max"] = Max(torch.where(batch.mask, log_ratio.exp(), -torch.inf).max())
    metrics["actor/log_ratio_max"] = Max(torch.where(batch.mask, log_ratio.abs(), 0).max())
    return metrics


def reference_metrics(
    batch: CoupledBatch, old_kl_to_ref: Tensor | None = None
) -> dict[str, Metric]:
    """The KL to the frozen reference, in nats as logp is, whatever distance a penalty takes.

    Of Gaussian steps it is exact, of tokens k3; where the reward alone is charged it is what that
    pays, in nats of whole steps. Nothing where nobody asked for a reference. What the coefficient
    multiplies is actor/kl_penalty, and the two differ where the penalty is not this KL.
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


def mismatch_metrics(batch: CoupledBatch) -> dict[str, Metric]:
    """How far the sampler's log-probabilities are from the trainer's for the same weights."""
    gap = torch.where(batch.mask, batch.old_logp - batch.behaviour_logp, 0)
    return {
        "rollout_corr/abs_logp_diff": masked_mean(gap.abs(), batch.mask),
        "rollout_corr/k1": masked_mean(-gap, batch.mask),
        "rollout_corr/k3": masked_mean(k3_of(batch.behaviour_logp, batch.old_logp), batch.mask),
        "rollout_corr/chi2_token": masked_mean((2 * gap).exp() - 1, batch.mask),
        "rollout_corr/chi2_seq": masked_mean((2 * gap.sum(1)).exp() - 1, batch.mask.any(1)),
    }


def advantage_metrics(advantages: Tensor, mask: Tensor) -> dict[str, float]:
    """Over the steps of the mask; the standard deviation is the population's."""
    kept = advantages[mask].double()
    if not len(kept):
        return {}
    return {"actor/adv_mean": kept.mean().item(), "actor/adv_std": kept.std(correction=0).item()}


def reward_metrics(scores: Scores, rollout: Rollout) -> dict[str, float]:
    """Over all that was sampled, before any filter: [B] rows of all ranks."""
    metrics = {"reward/missing": 1 - scores.scored.double().mean().item()}
    for name, part in {"": scores.total, **scores.parts}.items():
        known = part[scores.scored & part.isfinite()].double()
        if len(known):
            prefix = f"reward/{name}/" if name else "reward/"
            metrics[f"{prefix}mean"] = known.mean().item()
            metrics[f"{prefix}std"] = known.std(correction=0).item()
    group = rollout.group
    spreads = [scores.total[(group == g) & scores.scored] for g in group.unique()]
    if any(len(spread) > 1 for spread in spreads):
        flat = [not len(x) or (x.max() - x.min()).item() < 1e-6 for x in spreads]
        metrics["reward/frac_zero_std"] = sum(flat) / len(flat)
    return metrics | _right_metrics(scores, rollout)


def _right_metrics(scores: Scores, rollout: Rollout) -> dict[str, float]:
    """By the first reward, of which 1 or more is right and 0 or less wrong.

    Shares of the groups with a score: all samples right, all wrong, one right (pass@k of the k
    samples of a group). And mean lengths in steps of right and of wrong samples.
    """
    first = next(iter(scores.parts.values()))
    known = scores.scored & first.isfinite()
    right, wrong = known & (first >= 1), known & (first <= 0)
    if not (right | wrong).any():
        return {}  # a score that knows nothing but degrees
    lengths = {"right": rollout.length[right], "wrong": rollout.length[wrong]}
    metrics = {
        f"response/length_{name}": length.double().mean().item()
        for name, length in lengths.items()
        if len(length)
    }
    ids, group = rollout.group.unique(return_inverse=True)
    samples, of_right, of_wrong = (
        torch.bincount(group[rows], minlength=len(ids)) for rows in (known, right, wrong)
    )
    size, heard = int(group.bincount().max()), samples > 0
    if size < 2 or not heard.any():
        return metrics
    shares = {
        "frac_all_right": of_right == samples,
        "frac_all_wrong": of_wrong == samples,
        f"pass@{size}": of_right > 0,
    }
    return metrics | {f"reward/{n}": x[heard].double().mean().item() for n, x in shares.items()}


def response_metrics(rollout: Rollout) -> dict[str, float]:
    """Lengths in steps, entropy in nats per step of the distribution that was sampled from."""
    length, truncated = rollout.length.double(), rollout.truncated
    metrics = {
        "response/length_mean": length.mean().item(),
        "response/length_min": length.min().item(),
        "response/length_max": length.max().item(),
        "response/truncated": truncated.double().mean().item(),
    }
    if not truncated.all():
        metrics["response/length_finished"] = length[~truncated].mean().item()
    if rollout.entropy is not None:
        metrics["actor/entropy"] = rollout.entropy[rollout.mask].double().mean().item()
    if rollout.version_gap is not None:
        # Iterations from the weights of a sample's oldest step to those it is trained on.
        gap = torch.where(rollout.mask, rollout.version_gap, 0).amax(1).double()
        metrics["staleness/gap_mean"] = gap.mean().item()
        metrics["staleness/gap_max"] = gap.max().item()
    return metrics
