"""Splits of rows by their content and a seed alone, so that adding rows moves no other question."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tandem import rng
from tandem.data.records import InvalidRow, Rows, question
from tandem.types import Prompt


def split_rows(rows: Rows, *, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """(rest, held out). Rows that ask the same stay together. Of two questions or more one is held
    out at least, unless `held_out` is 0, and one is left at least.

    Raises ValueError for a part outside [0, 1).
    """
    check_share("data.held_out", held_out)
    chance = rng.uniform(rng.key(seed, "held out", torch.tensor(_shared_content(rows))))
    out = chance < held_out
    if held_out > 0 and not out.any():
        out = chance == chance.min()
    out = out & (chance < chance.max())
    return _select(rows, ~out, bad=rows.bad), _select(rows, out, bad=())


def check_share(key: str, held_out: float) -> None:
    """Raise ValueError with the key for a part outside [0, 1)."""
    if not 0 <= held_out < 1:
        raise ValueError(f"{key}={held_out} must be a share of the rows: at least 0, below 1")


def _shared_content(rows: Rows) -> list[int]:
    """For each row the smallest hash of those that ask the same: its own, if no other does."""
    asked = [question(prompt) for prompt in rows.prompts]
    least: dict[Hashable, int] = {}
    for own, content in zip(asked, rows.content, strict=True):
        least[own] = min(content, least.get(own, content))
    return [least[own] for own in asked]


def _select(rows: Rows, chosen: Tensor, *, bad: tuple[InvalidRow, ...]) -> Rows:
    places = chosen.nonzero()[:, 0].tolist()
    return Rows(
        prompts=tuple(rows.prompts[place] for place in places),
        content=tuple(rows.content[place] for place in places),
        bad=bad,
    )


def choose(prompts: tuple[Prompt, ...], *, max_size: int | None, seed: int) -> tuple[Prompt, ...]:
    """At most `max_size` of the prompts, chosen by id and left in their order.

    Raises ValueError for a `max_size` below 1.
    """
    if max_size is None or len(prompts) <= max_size:
        return prompts
    if max_size < 1:
        raise ValueError(f"data.max_size={max_size} must be at least 1, or null for all")
    ids = torch.tensor([prompt.id for prompt in prompts])
    kept = rng.bits(rng.key(seed, "choose", ids)).argsort(stable=True)[:max_size].sort().values
    return tuple(prompts[place] for place in kept.tolist())
