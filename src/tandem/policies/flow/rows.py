"""Pictures as the rows of a `Rollout`: those that were sampled, and those that were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem import rng
from tandem.policies.flow.records import FlowSample
from tandem.policies.flow.sampling import SamplerOutput
from tandem.types import Prompt, Rollout


def sampled(
    prompts: Sequence[Prompt],
    finished: SamplerOutput,
    pictures: Tensor,
    *,
    group: Tensor,
    key: Tensor,
    guidance: float,
    steps: int,
) -> Rollout:
    """One row per picture; its steps are those that were kept, or else so many."""
    if finished.trajectory is not None:
        steps = finished.trajectory.place.shape[1]
    sample = FlowSample(
        x0=finished.x0,
        key=key,
        guidance=torch.full(group.shape, guidance, dtype=torch.float64, device=group.device),
        trajectory=finished.trajectory,
    )
    return rollout(prompts, sample, pictures, group=group, steps=steps, logp=finished.logp)


def demonstrated(
    examples: Sequence[Prompt],
    x0: Tensor,
    pictures: Tensor,
    *,
    group: Tensor,
    key: Tensor,
    steps: int,
) -> Rollout:
    """The picture of each example, as so many steps. Data knows of no guidance."""
    guidance = torch.ones(group.shape, dtype=torch.float64, device=group.device)
    sample = FlowSample(x0=x0, key=key, guidance=guidance)
    return rollout(examples, sample, pictures, group=group, steps=steps, logp=None)


def rollout(
    prompts: Sequence[Prompt],
    sample: FlowSample,
    pictures: Tensor,
    *,
    group: Tensor,
    steps: int,
    logp: Tensor | None,
) -> Rollout:
    """Every step of a picture is trained, and no picture is cut off."""
    return Rollout(
        sample=sample,
        outputs=tuple(pictures.unbind()),
        prompts=tuple(prompts),
        mask=torch.ones(len(group), steps, dtype=torch.bool, device=group.device),
        group=group,
        length=torch.full_like(group, steps),
        truncated=torch.zeros_like(group, dtype=torch.bool),
        behaviour_logp=logp,
    )


def renewed(rollout: Rollout, epoch: int) -> Rollout:
    """The same pictures, to be noised anew; those that shared their noise still do."""
    key = rng.key(rollout.sample.key, "epoch", epoch)
    return replace(rollout, sample=replace(rollout.sample, key=key))


def picked(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the mask; where there is none, one that counts for nothing."""
    row, column = mask.nonzero(as_tuple=True)
    if not len(row):  # ranks wait for gradients of all weights
        row = column = torch.zeros(1, dtype=torch.int64, device=mask.device)
    return row, column


def scattered(values: Tensor, row: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """[N, ...] -> [B, T, ...], 0 outside the mask."""
    spread = values.new_zeros(*mask.shape, *values.shape[1:]).index_put((row, step), values)
    return torch.where(mask.view(*mask.shape, *(1,) * (values.ndim - 1)), spread, 0)
