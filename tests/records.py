"""Records for tests, small enough to check by hand."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tandem import rng
from tandem.advantages import shaping
from tandem.advantages.compose import normalise
from tandem.advantages.group import group_relative, unbiased_std
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.regularizers import EntropyBonus, KLInLoss
from tandem.losses import importance, reduction
from tandem.losses.kl import k3_unbiased
from tandem.losses.policy import ppo
from tandem.training import collect
from tandem.types import CoupledBatch, Prompt, Rollout, Scores

GRPO = Algorithm(
    objective="policy_gradient",
    sampling_strategy=collect.on_policy,
    truncation_handling=shaping.train,
    advantage=partial(group_relative, scale=unbiased_std),
    normalize_advantages=False,
    loss=ppo,
    weights=reduction.sequence_mean,
    importance_sampling=importance.token_tis,
    old_logprobs=importance.recompute,
    kl=KLInLoss(coef=0.0, loss=k3_unbiased),
    entropy=EntropyBonus(coef=0.0),
    critic=None,
    target_kl=None,
)


def rollout(mask: Tensor, group: Tensor, **known) -> Rollout:
    batch = len(mask)
    prompts = tuple(Prompt(id=int(g), source="test", text="?") for g in group)
    length = known.pop("length", mask.sum(1))
    truncated = known.pop("truncated", torch.zeros(batch, dtype=torch.bool))
    outputs = ("",) * batch
    return Rollout(
        sample=None, outputs=outputs, prompts=prompts, mask=mask, group=group,
        length=length, truncated=truncated, **known,
    )  # fmt: skip


def scores(total: Tensor, scored: Tensor | None = None) -> Scores:
    known = torch.ones(len(total), dtype=torch.bool) if scored is None else scored
    part = torch.where(known, total, torch.nan)
    return Scores(total=torch.where(known, total, 0), parts={"accuracy": part}, scored=known)


def coupled_batch(vectors: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> CoupledBatch:
    """The reference fixture with garbage set to 0, as objectives do; logp has a gradient."""
    mask = vectors["in/M"].bool()
    inside = {
        name: torch.where(mask, vectors[key].to(dtype), 0)
        for name, key in {
            "logp": "in/NEW",
            "old_logp": "in/OLD",
            "ref_logp": "in/REF",
            "behaviour_logp": "in/ROLL",
            "advantages": "in/ADV",
        }.items()
    }
    inside["logp"].requires_grad_()
    key = rng.key("row", torch.arange(len(mask)))
    return CoupledBatch(mask=mask, group=torch.tensor([0, 0, 0, 1, 1, 1]), key=key, **inside)


def with_whitening(estimate):
    """An estimator under `normalize_advantages`."""
    return lambda scores, rollout: normalise(estimate(scores, rollout), scores, rollout)
