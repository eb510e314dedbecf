"""How often a policy prefers the chosen answer of a held-out pair, by its own loss's reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tandem import ranks
from tandem.declarations import needs_of
from tandem.losses.pairs import reward_of
from tandem.policies.sampling import Sampling
from tandem.types import CoupledBatch, Prompt, Rollout


class Reader(Protocol):
    """What is asked of a policy."""

    sampling: Sampling

    def encode(self, examples: Sequence[Prompt], *, slots: Sequence[int]) -> Rollout: ...

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout: ...


def compare_pairs(policy: Reader, loss: Callable, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Over the prompts of all ranks that bring two answers; nothing if none does, or if the loss
    knows no preference.

    A tie counts one half: before training, a policy says nothing against its reference.
    """
    pairs = [prompt for prompt in prompts if prompt.is_pair]
    reward = reward_of(loss)
    if reward is None or not pairs:
        return {}
    needs = needs_of(loss) & {"ref_logp"} | {"old_logp"}
    own = pairs[ranks.rank() :: ranks.world_size()]
    step = max(1, policy.sampling.max_rows // 2)
    sums = torch.zeros(3, dtype=torch.float64)
    for start in range(0, len(own), step):
        margin = _margin(policy, reward, own[start : start + step], needs)
        ahead = (margin > 0).double() + 0.5 * (margin == 0)
        sums += torch.stack([ahead.sum(), margin.sum(), torch.ones_like(margin).sum()]).cpu()
    ahead, margin, count = ranks.total(sums).tolist()
    return {"eval/pair_accuracy": ahead / count, "eval/pair_margin": margin / count}


@torch.no_grad()
def _margin(
    policy: Reader,
    reward: Callable[[CoupledBatch], Tensor],
    pairs: Sequence[Prompt],
    needs: frozenset[str],
) -> Tensor:
    """Reward of the chosen minus that of the rejected answer: [pairs] float64"""
    chosen, rejected = zip(*(pair.sides for pair in pairs), strict=True)
    rollout = policy.encode([*chosen, *rejected], slots=[*range(len(pairs))] * 2)
    rollout = policy.complete(rollout, needs)
    rows = CoupledBatch(
        logp=rollout.old_logp,
        ref_logp=rollout.ref_logp,
        advantages=torch.zeros_like(rollout.old_logp),
        mask=rollout.mask,
        group=rollout.group,
    )
    of_chosen, of_rejected = reward(rows).double()[:, 0].chunk(2)
    return of_chosen - of_rejected
