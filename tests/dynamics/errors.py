"""Velocity errors: the four images of the reference at one level each, and random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.algorithm.objective import statistics_input
from tandem.contracts import batch_statistics_of
from tandem.dynamics.regression import Weighting, energy
from tandem.losses import reduction
from tandem.types import CoupledBatch, DecoupledBatch

GIVEN = {"error": "v", "old_error": "v_old", "ref_error": "v_ref"}


def reference_errors(flow, dtype=torch.float64) -> tuple[Tensor, DecoupledBatch]:
    """The live velocity [4, 2], and the errors of all velocities: [4, 1, 2].

    In the reference the fast average equals the old velocity.
    """
    velocity = {name: flow(f"fixture/{of}", dtype) for name, of in GIVEN.items()}
    velocity["error"].requires_grad_()
    truth = flow("fixture/v_target", dtype)
    errors = {name: (v - truth)[:, None] for name, v in velocity.items()}
    batch = DecoupledBatch(
        **errors,
        fast_error=errors["old_error"],
        sigma=flow("fixture/sigma", dtype)[:, None],
        advantages=flow("fixture/A", dtype)[:, None],
        mask=torch.ones(4, 1, dtype=torch.bool),
        group=flow("fixture/group").long(),
    )
    return velocity["error"], batch


def random_errors(
    groups: int = 6, size: int = 4, levels: int = 3, seed: int = 0, dtype=torch.float64
) -> DecoupledBatch:
    """Whole groups in shuffled order, whose rows share their levels; the last level of some rows is
    outside the mask, and one group has no advantage."""
    generator = torch.Generator().manual_seed(seed)
    rows, dimensions = groups * size, 5
    group = torch.arange(groups).repeat_interleave(size)
    noise = torch.randn(5, rows, levels, dimensions, generator=generator, dtype=dtype)
    mask = torch.ones(rows, levels, dtype=torch.bool)
    mask[::5, -1] = False
    advantages = torch.randn(rows, 1, generator=generator, dtype=dtype)
    advantages = torch.where(group[:, None] == 1, 0, advantages)
    order = torch.randperm(rows, generator=generator)
    inside = mask[..., None]
    own, old, ref, fast = (noise[0] + 0.1 * noise[1:]) * inside
    sigma = 0.05 + 0.9 * torch.rand(groups, levels, generator=generator, dtype=dtype)
    return DecoupledBatch(
        error=own[order].requires_grad_(),
        old_error=old[order],
        ref_error=ref[order],
        fast_error=fast[order],
        sigma=(sigma[group] * mask)[order],
        advantages=(advantages * mask)[order],
        mask=mask[order],
        group=group[order],
        velocity_gain=(-0.2 * mask.to(dtype))[order],
        std=(0.3 * mask.to(dtype))[order],
    )


def statistics_of(loss, batch) -> tuple[Tensor, ...]:
    """The statistics that a loss computes over all rows; most losses have none."""
    find = batch_statistics_of(loss)
    with torch.no_grad():
        return () if find is None else (find(statistics_input(loss, batch)),)


def mean_loss(loss, batch) -> Tensor:
    return (loss(batch, *statistics_of(loss, batch)) * reduction.sequence_mean(batch.mask)).sum()


def likelihoods(batch: DecoupledBatch, weighting: Weighting) -> CoupledBatch:
    """The same images with the log-probabilities that correspond to their errors."""

    def logp(error: Tensor) -> Tensor:
        return -weighting(batch.sigma, energy(error))

    return CoupledBatch(
        logp=logp(batch.error),
        old_logp=logp(batch.old_error),
        ref_logp=logp(batch.ref_error),
        advantages=batch.advantages,
        mask=batch.mask,
        group=batch.group,
    )
