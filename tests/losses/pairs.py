"""The pairs of the reference (llm_math.md, section 11) as rows, and random pairs."""

from __future__ import annotations

import torch

from tandem.types import CoupledBatch

CHOSEN = {"logp": [-10.0, -8, -12], "ref_logp": [-10.5, -8.2, -11], "length": [5, 4, 8]}
REJECTED = {"logp": [-11.0, -7.5, -14], "ref_logp": [-10.8, -7.9, -12.5], "length": [6, 3, 8]}


def reference_pairs(dtype: torch.dtype = torch.float64) -> CoupledBatch:
    """Six rows, alternately chosen and rejected, whose steps add up to the reference's sums.

    The steps of a row differ, so a formula that reads only one of them is wrong.
    """
    both = {name: [x for two in zip(CHOSEN[name], REJECTED[name], strict=True) for x in two]
            for name in CHOSEN}  # fmt: skip
    length = torch.tensor(both["length"])
    mask = torch.arange(8) < length[:, None]
    share = mask * (1 + torch.arange(8))
    share = (share / share.sum(1, keepdim=True)).double()
    logp, ref_logp = (
        (torch.tensor(both[name])[:, None] * share).to(dtype) for name in ("logp", "ref_logp")
    )
    return CoupledBatch(
        logp=logp.requires_grad_(), ref_logp=ref_logp, mask=mask,
        advantages=torch.tensor([1.0, -1.0]).repeat(3)[:, None].to(dtype) * mask,
        group=torch.arange(3).repeat_interleave(2),
    )  # fmt: skip


def random_pairs(pairs: int = 8, steps: int = 6, seed: int = 0) -> CoupledBatch:
    """Pairs in shuffled order, and a group without a preference. float64"""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * pairs + 2
    noise = torch.randn(2, rows, steps, generator=generator, dtype=torch.float64)
    mask = torch.arange(steps) < torch.randint(1, steps + 1, (rows, 1), generator=generator)
    ref_logp = (-1.5 - noise[0].abs()) * mask
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(pairs + 1)
    sign[-2:] = 0
    order = torch.randperm(rows, generator=generator)
    return CoupledBatch(
        logp=((ref_logp + noise[1]).clamp(max=-1e-3) * mask)[order].requires_grad_(),
        ref_logp=ref_logp[order],
        mask=mask[order],
        advantages=(sign[:, None] * mask)[order],
        group=torch.arange(pairs + 1).repeat_interleave(2)[order],
    )
