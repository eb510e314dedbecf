"""Pictures as a `Rollout`: those that were sampled, and those that were given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.policies.flow.records import FlowSample
from tandem.policies.flow.trajectories import Finished
from tandem.types import Prompt, Rollout


def sampled(
    prompts: Sequence[Prompt],
    finished: Finished,
    pictures: Tensor,
    *,
    group: Tensor,
    key: Tensor,
    guidance: float,
) -> Rollout:
    """One row per picture; a step is a random step, or the whole picture if none was."""
    steps = 1 if finished.logp is None else finished.logp.shape[1]
    sample = FlowSample(
        x0=finished.x0,
        key=key,
        guidance=torch.full(group.shape, guidance, dtype=torch.float64, device=group.device),
        trajectory=finished.trajectory,
    )
    return rollout(prompts, sample, pictures, group=group, steps=steps, logp=finished.logp)


def demonstrated(
    examples: Sequence[Prompt], x0: Tensor, pictures: Tensor, *, group: Tensor, key: Tensor
) -> Rollout:
    """The picture of each example, as one step. Data knows of no guidance."""
    guidance = torch.ones(group.shape, dtype=torch.float64, device=group.device)
    sample = FlowSample(x0=x0, key=key, guidance=guidance)
    return rollout(examples, sample, pictures, group=group, steps=1, logp=None)


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
