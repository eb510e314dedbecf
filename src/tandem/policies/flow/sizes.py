"""Rows of several sizes: split by size, processed separately, and joined in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.types import Prompt, Record, Rollout, alike, concat, take


def in_parts(rollout: Rollout, ask: Callable[[Rollout], Record]) -> Record:
    """The results of `ask` for the rows of each size, joined to one record of all rows."""
    parts = alike([prompt.size for prompt in rollout.prompts])
    return _in_order([ask(take(rollout, rows)) for rows in parts], parts)


def sample_by_size(
    prompts: Sequence[Prompt],
    slots: Sequence[int],
    group_size: int,
    sample: Callable[[list[Prompt], list[int]], Rollout],
) -> Rollout:
    """The results of `sample` for the prompts and slots of each size, in the prompts' order."""
    parts = [own.tolist() for own in alike([prompt.size for prompt in prompts])]
    found = [sample([prompts[i] for i in own], [slots[i] for i in own]) for own in parts]
    samples = torch.arange(group_size)
    return _in_order(found, [(group_size * torch.tensor(own)[:, None] + samples).flatten()
                             for own in parts])  # fmt: skip


def as_large(
    prompts: Sequence[Prompt], resolution: int | tuple[int, int], shape: Sequence[int]
) -> list[Prompt]:
    """Prompts at one resolution, to which their input images are resized too.

    `shape`: of the model's own pictures, [..., H, W, 3], whose aspect ratio a single side keeps.
    """
    high, wide = shape[-3:-1]
    size = (resolution, resolution * wide // high) if isinstance(resolution, int) else resolution
    return [replace(prompt, size=size) if prompt.images else prompt for prompt in prompts]


def _in_order(parts: Sequence[Record], places: Sequence[Tensor]) -> Record:
    """One record, with the rows of `parts` at these places."""
    return take(concat(parts), torch.cat([*places]).argsort())


def crop(rollout: Rollout, shape: Sequence[int]) -> Rollout:
    """Rows of one size, without the padding to larger ones.

    shape: of one latent.
    """

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[(..., *map(slice, shape))]

    sample, taken = rollout.sample, rollout.sample.trajectory
    if taken is not None:
        taken = replace(taken, path=cut(taken.path), mean=cut(taken.mean))
    return replace(rollout, sample=replace(sample, x0=cut(sample.x0), trajectory=taken))
