"""Missing rollout fields (old_logp, ref_logp, values), filled without gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tandem.policies.flow.logprob import StepLogProbComputer
from tandem.policies.flow.model import FlowModel
from tandem.types import Rollout


@torch.no_grad()
def completed(
    rollout: Rollout,
    needs: frozenset[str],
    *,
    model: FlowModel,
    scorer: StepLogProbComputer,
    logp: Callable[..., Tensor],
    trusted: Callable[[Rollout], bool],
) -> Rollout:
    """`logp(field, rollout, *, of_reference)` is that of training, and `trusted` says whether the
    sampler's is the same.

    Log-probabilities and means of the old policy are of one origin: losses add their ratio to the
    distance of their means.
    """
    if "kl_to_old" in needs:
        rollout = with_means(rollout, needs, model=model, scorer=scorer, trusted=trusted)

    def old_values() -> Tensor:
        return scorer.evidence(model, rollout, frozenset({"values"})).values

    def old_logp() -> Tensor:
        if rollout.behaviour_logp is not None and trusted(rollout):
            return rollout.behaviour_logp
        return logp(model.field, rollout)

    def ref_logp() -> Tensor:
        with model.reference() as field:
            return logp(field, rollout, of_reference=True)

    def old_kl_to_ref() -> Tensor:
        said = scorer.answers(model.field, rollout, frozenset({"kl_to_ref"}), model)
        return said["log_ratio_to_ref"]

    fill = {
        "old_values": old_values,
        "old_logp": old_logp,
        "ref_logp": ref_logp,
        "old_kl_to_ref": old_kl_to_ref,
    }
    found = {
        name: find()
        for name, find in fill.items()
        if name in needs and getattr(rollout, name) is None
    }
    return replace(rollout, **found)


def with_means(
    rollout: Rollout,
    needs: frozenset[str],
    *,
    model: FlowModel,
    scorer: StepLogProbComputer,
    trusted: Callable[[Rollout], bool],
) -> Rollout:
    """Where the steps go on average now, and how likely they are by the same pass, unless the
    sampler has kept the one and is believed in the other."""
    taken = rollout.sample.trajectory
    if taken is None:
        return rollout
    new = rollout.old_logp is None
    if taken.mean is not None and (not new or trusted(rollout)):
        return rollout
    logp, means = scorer.steps_again(model.field, rollout)
    sample = replace(rollout.sample, trajectory=replace(taken, mean=means))
    old = {"old_logp": logp} if new and "old_logp" in needs else {}
    return replace(rollout, sample=sample, **old)
