"""The prompts of a forward pass, each read once for all rows that answer it.

A row begins with the last token of its prompt, and sees the keys and values of those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.policies.language.inputs import Layout
from tandem.policies.language.records import TokenSample

PAYS_BELOW = 0.9  # tokens read, over those of the rows without padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """P prompts without their last tokens, of up to S tokens."""

    tokens: Tensor  # [P, S] int64; they end in the last column
    mask: Tensor  # [P, S] int64, 1 = token
    of_row: Tensor  # [R] int64: which of them stands before each row


def shared(sample: TokenSample, read: Tensor) -> Layout | None:
    """Rows behind prompts that are read once; None: that saves little.

    `read`: [B] int64, how many tokens of each row are read.
    """
    if int((sample.prompt_length - 1).max()) < 1 or int(read.max()) < 1:
        return None
    layout = behind_prompts(sample, read)
    tokens = layout.prefix.tokens.numel() + layout.tokens.numel()
    return layout if tokens < PAYS_BELOW * int(read.sum()) else None


def behind_prompts(sample: TokenSample, read: Tensor) -> Layout:
    """A row for each row, and a prefix for neighbours of the same prompt. `read`: [B] int64."""
    before = sample.prompt_length - 1
    width, longest = max(int((read - before).max()), 1), int(before.max())
    begins = begins_group(sample.tokens[:, :longest], before)
    first = begins.nonzero()[:, 0]
    column = torch.arange(longest, device=read.device) - (longest - before[first, None])
    position = before[:, None] + torch.arange(width, device=read.device)
    position = position.clamp(max=sample.tokens.shape[1] - 1)  # beyond, nothing is read
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
    """Whether a row's prompt is not that of the row above, [B] bool. prompts: [B, S]."""
    outside = torch.arange(prompts.shape[1], device=length.device) >= length[:, None]
    same = ((prompts == prompts.roll(1, 0)) | outside).all(1) & (length == length.roll(1))
    same[0] = False
    return ~same
