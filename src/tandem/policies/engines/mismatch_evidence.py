"""Log-probabilities of the same tokens under engine, trainer and stale weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.policies.engines.diagnosis import OLD_HEAD, Seen, logp_of_tokens
from tandem.policies.engines.weight_files import read
from tandem.policies.language.inputs import TokenIndex
from tandem.types import Rollout, widen

if TYPE_CHECKING:
    from tandem.policies.engines.rollout_engine import EngineMixin

TOKENS = 128  # about how many are compared: all their logits are held at once


@torch.no_grad()
def collect_mismatch_evidence(policy: EngineMixin, rows: Rollout) -> Seen:
    """The evidence of a few rows, sampled under the present weights."""
    steps = max(TOKENS // len(rows.mask), 1)
    mask = rows.mask & (torch.arange(rows.mask.shape[1], device=rows.mask.device) < steps)
    places = TokenIndex.of(rows.sample, mask)
    states = policy.scorer.states(rows.sample, mask)
    with policy.precision.on(mask.device):
        logits = policy.scorer.head(states)
    return Seen(
        engine=rows.behaviour_logp.float(),
        mask=mask,
        logits=widen(logits),
        token=places.token,
        temperature=float(rows.sample.temperature[0]),
        others=_under_others(policy, rows, mask),
    )


def _under_others(policy: EngineMixin, rows: Rollout, mask: Tensor) -> dict[str, Tensor]:
    """Log-probabilities under other weights that an engine may still have: name -> [R, T]."""

    def compute_logp() -> Tensor:
        return policy.scorer.in_parts(rows.sample, mask).logp

    found = {}
    if policy.lora is not None:
        with policy.network.disable_adapter():
            found["the model without the adapter"] = compute_logp()
    for folder in policy.supply.engine.handovers[:-1]:
        with policy.files.as_in(folder) as fits:
            if fits:
                found["the weights before the last update"] = compute_logp()
        found |= _under_old_head(policy, rows, mask, folder)
    return found


def _under_old_head(
    policy: EngineMixin, rows: Rollout, mask: Tensor, folder: Path
) -> dict[str, Tensor]:
    """Log-probabilities of the present layers with the head of an older handover, which may also be
    tied to the embedding."""
    model, places = policy.scorer.model, TokenIndex.of(rows.sample, mask)
    head = model.get_output_embeddings()
    (name,) = [n for n, p in policy.network.named_parameters() if p is head.weight] or [""]
    older = dict(read(folder, adapter=policy.lora is not None)).get(name)
    if older is None or not policy.scorer.splits:
        return {}
    states = policy.scorer.states(rows.sample, mask)
    with policy.precision.on(mask.device):
        logits = linear(states, older.to(states), head.bias)
    logp = (widen(logits) / rows.sample.temperature[places.row, None]).log_softmax(-1)
    said = torch.zeros_like(mask, dtype=logp.dtype)
    said[mask] = logp_of_tokens(logp, places.token)
    return {OLD_HEAD: said}
