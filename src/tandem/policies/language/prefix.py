"""Shared prompts of a forward pass: each is read once for all rows that answer it.

A row begins with the last token of its prompt, and attends to the keys and values before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.policies.language.inputs import Layout
from tandem.policies.language.records import TokenSample

PAYS_BELOW = 0.9  # tokens read, relative to rows without sharing and padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """P prompts without their last tokens, of at most S tokens."""

    tokens: Tensor  # [P, S] int64; padded on the left
    mask: Tensor  # [P, S] int64, 1 = token
    of_row: Tensor  # [R] int64: index of each row's prompt


def share_prompts(sample: TokenSample, read: Tensor) -> Layout | None:
    """Rows after prompts that are read once; None: that saves little.

    `read`: [B] int64, how many tokens of each row are read.
    """
    if int((sample.prompt_length - 1).max()) < 1 or int(read.max()) < 1:
        return None
    layout = behind_prompts(sample, read)
    tokens = layout.prefix.tokens.numel() + layout.tokens.numel()
    return layout if tokens < PAYS_BELOW * int(read.sum()) else None


def behind_prompts(sample: TokenSample, read: Tensor) -> Layout:
    """One row per row, and one prefix per run of rows with the same prompt. `read`: [B] int64."""
    before = sample.prompt_length - 1
    width, longest = max(int((read - before).max()), 1), int(before.max())
    begins = begins_group(sample.tokens[:, :longest], before)
    first = begins.nonzero()[:, 0]
    column = torch.arange(longest, device=read.device) - (longest - before[first, None])
    position = before[:, None] + torch.arange(width, device=read.device)
    position = position.clamp(max=sample.tokens.shape[1] - 1)  # columns after it are not read
    return Layout(
        tokens=sample.tokens.gather(1, position),
        start=torch.arange(len(read), device=read.device) * width - before,
        position=position,
        prefix=Prefix(
            tokens=sample.tokens[first].gather(1, column.clamp(min=0)),
            mask=(column >= 0).long(),
            of_row=begins.cumsum(0) - 1,
        ),
    )


def begins_group(prompts: Tensor, length: Tensor) -> Tensor:
    """Whether a row's prompt differs from that of the row above, [B] bool. prompts: [B, S]."""
    outside = torch.arange(prompts.shape[1], device=length.device) >= length[:, None]
    same = ((prompts == prompts.roll(1, 0)) | outside).all(1) & (length == length.roll(1))
    same[0] = False
    return ~same
