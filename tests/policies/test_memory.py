"""Micro-batches affect only memory: what the backward pass stores shrinks with them."""

from dataclasses import replace
from functools import partial

import torch
from policies.small_language import NOTHING, questions, small

from tandem.algorithm.coupled import Coupled
from tandem.algorithm.objective import Term
from tandem.experience import Budget, Experience, select_rows
from tandem.losses import reduction
from tandem.losses.policy import reinforce
from tandem.types import Scores


def saved_bytes(objective, policy, rows) -> int:
    """Bytes that autograd saves in the forward pass of one micro-batch, without parameters."""
    parameters = {p.data_ptr() for p in policy.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            seen[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective(policy, rows).loss.backward()
    return sum(seen.values())


def test_peak_memory_falls_with_the_micro_batch():
    policy = small(NOTHING)
    different = [  # equal rows would be read once
        replace(prompt, answer=f"{prompt.answer}{number:02}")
        for number, prompt in enumerate(questions() * 4)
    ]
    rollout = policy.encode(different, key=0, slots=range(32))
    rollout = replace(rollout, behaviour_logp=None)
    one = torch.ones(32)
    objective = Coupled({"policy": Term(loss=reinforce, coef=1.0, weights=reduction.token_mean)})
    update = Experience(
        rollout=rollout,
        scores=Scores(total=one, parts={}, scored=one.bool()),
        advantages=rollout.mask.float(),
    )
    update = replace(update, weights=objective.weigh(update))
    peak = partial(_peak, objective, policy, update)
    whole, halves, eighths = (peak(Budget(rows=rows)) for rows in (32, 16, 4))
    assert halves < 0.7 * whole
    assert eighths < 0.3 * whole


def _peak(objective, policy, update, budget) -> int:
    parts = budget.cut(policy.row_cost(update.rollout))
    return max(saved_bytes(objective, policy, select_rows(update, part)) for part in parts)
