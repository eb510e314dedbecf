"""Preference accuracy: the share of held-out pairs whose chosen answer has the higher reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from tandem import distributed, rng
from tandem.contracts import facts_of
from tandem.contracts.inner_parts import ask_inner
from tandem.evaluation.settings import Evaluation
from tandem.losses.pairs import reward_of
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.types import CoupledBatch, Prompt, Rollout


class PreferenceReader(Protocol):
    """The interface of a policy for held-out pairs."""

    sampling: Sampling | FlowSampling

    def summon_full_params(
        self, sampling: Sampling | FlowSampling, needs: frozenset[str]
    ) -> AbstractContextManager[None]: ...

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout: ...

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout: ...


def compare_pairs(
    policy: PreferenceReader,
    loss: Callable,
    prompts: Sequence[Prompt],
    settings: Evaluation,
    *,
    key: int,
) -> dict[str, float]:
    """The accuracy over the prompts of all ranks with two answers; empty without such prompts, or
    if the loss defines no preference.

    The weights are those that `settings` samples with, and noise is a function of key and prompt. A
    tie counts one half: before training the policy equals its reference.
    """
    pairs = [prompt for prompt in prompts if prompt.is_pair]
    reward = reward_of(loss)
    if reward is None or not pairs:
        return {}
    needs = facts_of(loss).reads & {"ref_logp"} | {"old_logp"}
    own = pairs[distributed.rank() :: distributed.world_size()]
    step = max(1, policy.sampling.max_rows // 2)
    sums = torch.zeros(3, dtype=torch.float64)
    first, *_ = settings.passes(policy.sampling, full=False)
    with policy.summon_full_params(first.sampling, needs):
        for start in range(0, len(own), step):
            rows = _rows(policy, own[start : start + step], needs, key=key)
            of_rows = ask_inner(reward, rows, shape=[len(rows.mask), 1], axes="[B, 1]")
            of_chosen, of_rejected = of_rows.double()[:, 0].chunk(2)
            margin = of_chosen - of_rejected
            ahead = (margin > 0).double() + 0.5 * (margin == 0)
            sums += torch.stack([ahead.sum(), margin.sum(), torch.ones_like(margin).sum()]).cpu()
    ahead, margin, count = distributed.all_sum(sums).tolist()
    return {"eval/pair_accuracy": ahead / count, "eval/pair_margin": margin / count}


@torch.no_grad()
def _rows(
    policy: PreferenceReader, pairs: Sequence[Prompt], needs: frozenset[str], *, key: int
) -> CoupledBatch:
    """The chosen answers, then the rejected ones: [2 pairs, T]"""
    chosen, rejected = zip(*(pair.sides for pair in pairs), strict=True)
    # Keyed by prompt, not by position: noise does not depend on the choice of prompts.
    slots = [pair.id for pair in pairs] * 2
    rollout = policy.encode([*chosen, *rejected], key=rng.key(key, "regression"), slots=slots)
    rollout = policy.complete(rollout, needs)
    return CoupledBatch(
        logp=rollout.old_logp,
        ref_logp=rollout.ref_logp,
        advantages=torch.zeros_like(rollout.old_logp),
        mask=rollout.mask,
        group=rollout.group,
    )
